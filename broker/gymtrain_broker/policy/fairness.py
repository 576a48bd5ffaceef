"""The queue: tasks take turns, and a task's own requests keep their order.

With one request each, tasks are served in the order in which they came. A task with 64 requests gets one in every round
of all tasks, so it doesn't starve another's.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator


class FairQueue:
    """Ids of waiting requests, by task."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, deque[str]] = OrderedDict()
        self._task_of: dict[str, str] = {}
        self._positions: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._task_of)

    def __iter__(self) -> Iterator[str]:
        """In the order of their turns, as long as nobody else comes."""
        return self._order()

    def put(self, item: str, task: str) -> None:
        """At the end of its task's requests."""
        self._tasks.setdefault(task, deque()).append(item)
        self._noted(item, task)

    def put_back(self, item: str, task: str) -> None:
        """It had its turn, but got nothing: it is the next one again."""
        self._tasks.setdefault(task, deque()).appendleft(item)
        self._tasks.move_to_end(task, last=False)
        self._noted(item, task)

    def pop(self) -> str:
        """The next one; its task goes to the end of the round.

        Raises:
            KeyError: nobody waits.
        """
        task, items = next(iter(self._tasks.items()), ("", None))
        if items is None:
            raise KeyError("the queue is empty")
        item = items.popleft()
        self._forget(item, task)
        if task in self._tasks:
            self._tasks.move_to_end(task)
        return item

    def remove(self, item: str) -> None:
        """It waits no longer."""
        task = self._task_of.get(item)
        if task is not None:
            self._tasks[task].remove(item)
            self._forget(item, task)

    def position(self, item: str) -> int | None:
        """Its place, from 1, as long as nobody else comes."""
        if self._positions is None:
            self._positions = {one: place for place, one in enumerate(self._order(), start=1)}
        return self._positions.get(item)

    def _order(self) -> Iterator[str]:
        left = [deque(items) for items in self._tasks.values()]
        while left:
            for items in left:
                yield items.popleft()
            left = [items for items in left if items]

    def _noted(self, item: str, task: str) -> None:
        self._task_of[item] = task
        self._positions = None

    def _forget(self, item: str, task: str) -> None:
        del self._task_of[item]
        self._positions = None
        if not self._tasks[task]:
            del self._tasks[task]
