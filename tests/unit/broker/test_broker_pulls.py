"""How fast images are pulled ahead."""

from gymtrain_broker.objects import pod_view
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.image_pulls import ImagePulls


def _pod(image: str, *, pulled: bool = False) -> SandboxPod:
    status = {"containerStatuses": [{"name": "sandbox", "imageID": "sha256:1" if pulled else ""}]}
    spec = {"containers": [{"name": "sandbox", "image": image}]}
    return pod_view.read({"metadata": {"name": image}, "spec": spec, "status": status})


def test_pulls_are_counted_by_registry_and_image() -> None:
    pulls = ImagePulls(2)
    found = pulls.under_way([_pod("a:1"), _pod("a:1"), _pod("ghcr.io/b:1"), _pod("c:1", pulled=True)])
    assert found == {"docker.io": {"a:1"}, "ghcr.io": {"ghcr.io/b:1"}}


def test_a_full_registry_takes_no_new_image_but_known_ones() -> None:
    pulls = ImagePulls(2)
    pulls.note(_pod("known:1", pulled=True))
    under_way = {"docker.io": {"a:1", "b:1"}}
    assert not pulls.allows("new:1", under_way, 0)
    assert pulls.allows("a:1", under_way, 0)
    assert pulls.allows("known:1", under_way, 0)
    assert pulls.allows("ghcr.io/new:1", under_way, 0)


def test_each_failure_doubles_the_pause_up_to_ten_minutes() -> None:
    pulls, now, pauses = ImagePulls(2), 0.0, []
    for _ in range(8):
        pulls.failed("a:1", now, throttled=False)
        begin = now
        while not pulls.allows("a:1", {}, now):
            now += 5
        pauses.append(now - begin)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]


def test_failures_at_the_same_time_count_once() -> None:
    pulls = ImagePulls(2)
    for _ in range(5):
        pulls.failed("a:1", 0, throttled=True)
    assert pulls.allows("a:1", {}, 10)


def test_throttling_pauses_the_whole_registry_and_a_missing_image_only_itself() -> None:
    pulls = ImagePulls(2)
    pulls.failed("a:1", 0, throttled=False)
    assert pulls.allows("b:1", {}, 1)
    pulls.failed("b:1", 0, throttled=True)
    assert not pulls.allows("c:1", {}, 1)
    assert pulls.allows("ghcr.io/c:1", {}, 1)


def test_a_pull_that_succeeds_ends_the_pause() -> None:
    pulls = ImagePulls(2)
    pulls.failed("a:1", 0, throttled=True)
    pulls.note(_pod("b:1", pulled=True))
    assert pulls.allows("c:1", {}, 1)
    assert not pulls.allows("a:1", {}, 1)
