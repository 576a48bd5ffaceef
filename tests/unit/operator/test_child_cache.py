"""The cache of what runs own: what counts of lists, watches and the operator's own writes."""

from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_operator import child_cache, kinds
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.kinds import Kind
from gymtrain_operator.run_queue import RunKey

KEY = ("ns", "run")


def _object(name: str, version: int, *, run: str = "run", namespace: str = "ns", **more: Any) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-of-{name}",
        "resourceVersion": str(version),
        "labels": {labels.RUN: run, labels.MANAGED_BY: labels.MANAGED_BY_VALUE},
    }
    return {"metadata": meta, **more}


class _Cache(ChildCache):
    """A cache whose watches have begun, with a run that has nothing yet, and another one."""

    def __init__(self, *keys: RunKey) -> None:
        super().__init__()
        self.changed: list[RunKey] = []
        self.on_change = self.changed.append
        for kind in kinds.CHILDREN:
            self.begin(kind, None)
        for key in keys or (KEY, ("ns", "other")):
            self.fill(key, {}, self.want(key))

    def versions(self, kind: Kind = kinds.POD, key: RunKey = KEY) -> dict[str, str]:
        by_kind = self.read(key)
        assert by_kind is not None
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in by_kind[kind.name]}


def test_nothing_is_read_before_each_kind_is_watched_and_the_run_was_listed() -> None:
    cache = ChildCache()
    for kind in kinds.CHILDREN:
        assert cache.want(KEY) is None
        cache.begin(kind, None)
    since = cache.want(KEY)
    assert cache.read(KEY) is None
    cache.fill(KEY, {"Pod": [_object("p", 3)]}, since)
    by_kind = cache.read(KEY)
    assert by_kind is not None
    assert [item["metadata"]["name"] for item in by_kind["Pod"]] == ["p"]


def test_namespaces_are_current_one_by_one() -> None:
    cache = ChildCache()
    for kind in kinds.CHILDREN:
        cache.begin(kind, "a")
    assert cache.is_current("a")
    assert not cache.is_current("b")


def test_an_event_while_a_run_is_listed_counts_if_it_is_later() -> None:
    cache = _Cache()
    cache.drop(KEY)
    since = cache.want(KEY)
    cache.put(kinds.POD, _object("p", 12))
    cache.put(kinds.POD, _object("q", 12))
    cache.remove(kinds.POD, _object("gone", 13))
    cache.fill(KEY, {"Pod": [_object("p", 11), _object("q", 13), _object("gone", 11)]}, since)
    assert cache.versions() == {"p": "12", "q": "13"}


def test_a_list_that_began_before_a_gap_is_not_kept() -> None:
    cache = _Cache()
    cache.drop(KEY)
    since = cache.want(KEY)
    cache.begin(kinds.POD, None)
    cache.fill(KEY, {"Pod": [_object("p", 11)]}, since)
    assert cache.read(KEY) is None


def test_after_a_gap_each_run_is_listed_again() -> None:
    cache = _Cache()
    cache.put(kinds.POD, _object("p", 11))
    cache.lose(kinds.POD, None)
    assert cache.read(KEY) is None
    cache.changed.clear()
    cache.begin(kinds.POD, None)
    assert cache.read(KEY) is None, "what vanished meanwhile is still there"
    assert set(cache.changed) == {KEY, ("ns", "other")}


def test_a_gap_in_one_namespace_leaves_the_others() -> None:
    cache = ChildCache()
    for kind in kinds.CHILDREN:
        cache.begin(kind, "a")
        cache.begin(kind, "b")
    for namespace in ("a", "b"):
        cache.fill((namespace, "run"), {}, cache.want((namespace, "run")))
    cache.begin(kinds.POD, "a")
    assert cache.read(("a", "run")) is None
    assert cache.read(("b", "run")) is not None


def test_nothing_is_kept_of_runs_that_nobody_looks_at() -> None:
    cache = _Cache()
    cache.put(kinds.POD, _object("p", 11))
    cache.put_own(kinds.POD, _object("q", 12))
    cache.drop(KEY)
    cache.put(kinds.POD, _object("p", 13))
    cache.put_own(kinds.POD, _object("q", 14))
    cache.remove(kinds.POD, _object("r", 15))
    shelf = cache._shelves["Pod"]
    assert (shelf.by_run, shelf.own, shelf.graves) == ({}, {}, {})
    assert cache.changed == [KEY, KEY]


def test_runs_see_their_own_objects_alone() -> None:
    cache = _Cache()
    cache.put(kinds.POD, _object("p", 11))
    cache.put(kinds.POD, _object("q", 12, run="other"))
    cache.put(kinds.POD, _object("p", 13, namespace="elsewhere"))
    assert cache.versions() == {"p": "11"}
    assert cache.changed == [KEY, ("ns", "other")]


def test_an_older_event_changes_nothing() -> None:
    cache = _Cache()
    cache.put(kinds.POD, _object("p", 12))
    cache.put(kinds.POD, _object("p", 11))
    assert cache.versions() == {"p": "12"}
    assert cache.changed == [KEY]


def test_versions_are_compared_as_numbers() -> None:
    cache = _Cache()
    cache.put(kinds.POD, _object("p", 99))
    cache.put(kinds.POD, _object("p", 100))
    assert cache.versions() == {"p": "100"}


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    cache = _Cache()
    for version in ("b", "a"):
        item = _object("p", 0)
        item["metadata"]["resourceVersion"] = version
        cache.put(kinds.POD, item)
    assert cache.versions() == {"p": "a"}


def test_the_event_of_an_own_write_is_no_news() -> None:
    cache = _Cache()
    cache.put_own(kinds.SERVICE, _object("s", 11))
    assert cache.versions(kinds.SERVICE) == {"s": "11"}
    cache.changed.clear()
    cache.put(kinds.SERVICE, _object("s", 11))
    assert cache.changed == []


def test_a_deleted_object_doesnt_come_back_by_an_answer_that_was_long_under_way() -> None:
    cache = _Cache()
    cache.put(kinds.POD, _object("p", 11))
    cache.remove(kinds.POD, _object("p", 13))
    cache.put(kinds.POD, _object("p", 12))
    assert cache.versions() == {}
    cache.put(kinds.POD, _object("p", 14))
    assert cache.versions() == {"p": "14"}, "a successor of the same name is another object"


def test_the_end_of_an_object_that_was_replaced_meanwhile_leaves_its_successor() -> None:
    cache = _Cache()
    cache.put_own(kinds.POD, _object("p", 15))
    cache.remove(kinds.POD, _object("p", 13))
    assert cache.versions() == {"p": "15"}


def test_ends_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_cache, "_MAX_GRAVES", 3)
    cache = _Cache()
    for number in range(10):
        cache.remove(kinds.POD, _object(f"p-{number}", 20 + number))
    assert len(cache._shelves["Pod"].graves) == 3


def test_an_object_that_loses_its_runs_label_leaves_the_run() -> None:
    cache = _Cache()
    cache.put(kinds.POD, _object("p", 11))
    # The API server says DELETED with the object as it was before, and the version of the change.
    cache.remove(kinds.POD, _object("p", 12))
    assert cache.versions() == {}


def test_nobody_has_touched_what_is_as_the_operator_wrote_it() -> None:
    cache = _Cache()
    cache.put_own(kinds.SERVICE, _object("s", 11))
    cache.put(kinds.SERVICE, _object("t", 11))
    assert cache.untouched(KEY) == {"uid-of-s"}
    cache.put(kinds.SERVICE, _object("s", 12))
    assert cache.untouched(KEY) == frozenset()


def test_a_deleted_objects_last_write_says_nothing_about_its_successor() -> None:
    cache = _Cache()
    cache.put_own(kinds.SERVICE, _object("s", 11))
    cache.remove(kinds.SERVICE, _object("s", 12))
    assert cache._shelves["Service"].own == {}
