"""A dictionary of bounded weight that forgets what was not used for longest."""

from collections import OrderedDict
from collections.abc import Callable


class LRU[Key, Value]:
    """Holds at most `capacity`, counted by `weight` of each value."""

    def __init__(self, capacity: int, weight: Callable[[Value], int] = lambda _: 1) -> None:
        self._capacity = capacity
        self._weight = weight
        self._items: OrderedDict[Key, Value] = OrderedDict()
        self.held = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Value | None:
        """The value, which counts as used."""
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key]

    def put(self, key: Key, value: Value) -> None:
        """Adds or replaces a value. One above the capacity is not kept."""
        old = self._items.pop(key, None)
        if old is not None:
            self.held -= self._weight(old)
        self._items[key] = value
        self.held += self._weight(value)
        while self.held > self._capacity:
            _, forgotten = self._items.popitem(last=False)
            self.held -= self._weight(forgotten)
