"""What runs own, as the watches show it: one copy of each object, cut to what is read of it.

Each kind of each namespace, or of all at once, is watched (`following`). A run's objects are here from its first look,
which lists them, until it has ended: of the thousands of runs that a cluster keeps nothing is held, nor anything that
only bears the labels of a run. What the operator writes is taken from the API server's answer, so that a reader sees it
before the watch does.

Nothing goes back: of two versions of an object the later one counts, and one that was deleted doesn't come back by an
answer that was long under way. Since Kubernetes 1.35 versions of objects of one kind may be compared as numbers
(KEP-5504), as etcd's revisions always could.

An object is kept as compressed JSON, which takes a sixth of what its dicts do: a run's are read once in minutes.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gymtrain_api import labels
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.run_queue import RunKey

type OnChange = Callable[[RunKey], None]
"""Called with the run whose objects are no longer as they were."""

_MAX_GRAVES = (
    1000  # of deletions; an answer that is older than that many of its kind is longer under way than it may be
)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An object."""

    uid: str
    version: int
    packed: bytes

    def unpacked(self) -> Object:
        """The object, for its reader alone."""
        item: Object = json.loads(zlib.decompress(self.packed))
        return item


@dataclass
class _Shelf:
    """All objects of a kind."""

    by_run: dict[RunKey, dict[str, _Kept]] = field(default_factory=dict)
    graves: dict[tuple[str, str], int] = field(default_factory=dict)  # when an object was deleted, by its version
    own: dict[tuple[str, str], int] = field(default_factory=dict)  # which version the operator's last write left


class ChildCache:
    """The objects of all runs that go on. Not thread-safe: one event loop."""

    def __init__(self) -> None:
        self._shelves = {kind.name: _Shelf() for kind in kinds.CHILDREN}
        self._watched: set[tuple[str, str | None]] = set()  # kinds with their namespace
        self._wanted: set[RunKey] = set()
        self._complete: set[RunKey] = set()
        self._gaps = 0
        self.on_change: OnChange = lambda key: None

    def read(self, key: RunKey) -> dict[str, list[Object]] | None:
        """Returns what bears the run's labels, by kind; None where not all of it is here."""
        if not self.holds(key):
            return None
        return {
            kind: [kept.unpacked() for kept in shelf.by_run.get(key, {}).values()]
            for kind, shelf in self._shelves.items()
        }

    def holds(self, key: RunKey) -> bool:
        """Whether all objects of a run are here, and their changes come."""
        return key in self._complete and self.is_current(key[0])

    def is_current(self, namespace: str) -> bool:
        """Whether changes of all kinds in a namespace come."""
        return all((kind, None) in self._watched or (kind, namespace) in self._watched for kind in self._shelves)

    def want(self, key: RunKey) -> int | None:
        """Takes changes of a run's objects from now on. Returns what `fill` needs to know, after a list that begins
        later than this; None while changes don't come."""
        if not self.is_current(key[0]):
            return None
        self._wanted.add(key)
        return self._gaps

    def fill(self, key: RunKey, by_kind: Mapping[str, Iterable[Object]], since: int | None) -> None:
        """Takes a list of all that a run owns; in vain where a watch had a gap `since` then."""
        if since != self._gaps or key not in self._wanted:
            return
        for kind, items in by_kind.items():
            for item in items:
                if _key(item) == key:
                    self._put(self._shelves[kind], item)
        self._complete.add(key)

    def drop(self, key: RunKey) -> None:
        """Forgets a run that has ended or is gone."""
        self._wanted.discard(key)
        self._complete.discard(key)
        for shelf in self._shelves.values():
            for name in shelf.by_run.pop(key, {}):
                shelf.own.pop((key[0], name), None)

    def begin(self, kind: Kind, namespace: str | None) -> None:
        """Notes that a kind, of a namespace or of all, is watched from a new place: what happened before that is not
        known, so each run there has to be listed again."""
        self._watched.add((kind.name, namespace))
        self._gaps += 1
        for key in [key for key in self._wanted if namespace in (None, key[0])]:
            self.drop(key)
            self.on_change(key)

    def lose(self, kind: Kind, namespace: str | None) -> None:
        """Notes that changes of a kind no longer come."""
        self._watched.discard((kind.name, namespace))

    def put(self, kind: Kind, item: Object) -> None:
        """Takes an object as a watch or the answer to a write has it, cut already."""
        if _key(item) in self._wanted:
            self._put(self._shelves[kind.name], item)

    def put_own(self, kind: Kind, item: Object) -> None:
        """Takes an object as the API server has it after the operator's own write."""
        meta = item["metadata"]
        if _key(item) in self._wanted:
            self._shelves[kind.name].own[meta["namespace"], meta["name"]] = _version(item)
            self.put(kind, item)

    def untouched(self, key: RunKey) -> frozenset[str]:
        """Returns the uids of the objects that nobody has written since the operator did."""
        return frozenset(
            kept.uid
            for shelf in self._shelves.values()
            for name, kept in shelf.by_run.get(key, {}).items()
            if 0 < kept.version == shelf.own.get((key[0], name))
        )

    def remove(self, kind: Kind, item: Object) -> None:
        """Takes the end of an object, or of its labels; `item` is as it was last, with the version of the end."""
        if _key(item) not in self._wanted:
            return
        shelf, meta = self._shelves[kind.name], item["metadata"]
        name = meta["name"]
        shelf.graves.pop((meta["namespace"], name), None)
        shelf.graves[meta["namespace"], name] = _version(item)
        if len(shelf.graves) > _MAX_GRAVES:
            del shelf.graves[next(iter(shelf.graves))]
        known = shelf.by_run.get(_key(item), {}).get(name)
        if known is not None and known.version <= (_version(item) or known.version):
            self._take_out(shelf, _key(item), name)

    def _put(self, shelf: _Shelf, item: Object) -> None:
        key, name, version = _key(item), item["metadata"]["name"], _version(item)
        known = shelf.by_run.get(key, {}).get(name)
        if known is not None and 0 < version <= known.version:
            return
        if 0 < version <= shelf.graves.get((key[0], name), 0):
            return
        packed = zlib.compress(json.dumps(item, separators=(",", ":")).encode(), level=1)
        shelf.by_run.setdefault(key, {})[name] = _Kept(str(item["metadata"].get("uid", "")), version, packed)
        self.on_change(key)

    def _take_out(self, shelf: _Shelf, key: RunKey, name: str) -> None:
        del shelf.by_run[key][name]
        shelf.own.pop((key[0], name), None)
        if not shelf.by_run[key]:
            del shelf.by_run[key]
        self.on_change(key)


def _key(item: Object) -> RunKey:
    meta = item["metadata"]
    return meta["namespace"], (meta.get("labels") or {}).get(labels.RUN, "")


def _version(item: Mapping[str, object]) -> int:
    meta = item["metadata"]
    assert isinstance(meta, dict)
    return _number(str(meta.get("resourceVersion", "")))


def _number(version: str) -> int:
    """A resourceVersion as a number; 0 for one that is none, which is taken as it comes."""
    return int(version) if version.isdecimal() else 0
