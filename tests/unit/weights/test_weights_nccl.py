"""The NCCL transport against pods that take part in everything but the broadcast itself."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights import NCCL, NoServersError, WeightSync, WeightSyncError  # noqa: E402
from tests.unit.weights.weights_waits import on_main_thread, until  # noqa: E402

pytestmark = pytest.mark.torch


class FakeCommunicator:
    """Keeps what is broadcast."""

    made: list["FakeCommunicator"]
    fail = ""  # the broadcasts' error

    def __init__(self, library: Any, unique_id: bytes, world_size: int, device: int) -> None:
        self.device = torch.device("cpu")
        self.world_size = world_size
        self.sent: list[Any] = []
        self.aborted = ""
        FakeCommunicator.made.append(self)

    def broadcast(self, tensor: Any) -> None:
        if self.fail:
            raise WeightSyncError(self.fail)
        self.sent.append(tensor.clone())

    def wait(self) -> None:
        self.check()

    def check(self) -> None:
        if self.aborted:
            raise WeightSyncError(f"NCCL: {self.aborted}")

    def abort(self, reason: str) -> None:
        self.aborted = self.aborted or reason


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> type[FakeCommunicator]:
    module = "gymtrain_trainer.weights.transports.nccl.libnccl"
    monkeypatch.setattr(f"{module}.load", lambda: None)
    monkeypatch.setattr(f"{module}.new_id", lambda _: bytes(128))
    monkeypatch.setattr(f"{module}.Communicator", FakeCommunicator)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    FakeCommunicator.made, FakeCommunicator.fail = [], ""
    return FakeCommunicator


class Model:
    """Two tensors."""

    def __init__(self) -> None:
        self.tensors = {"a.weight": torch.ones(2, 3), "b.index": torch.arange(4)}

    def parameters(self) -> Iterator[tuple[str, Any]]:
        return iter(self.tensors.items())


@pytest.fixture
def model() -> Model:
    return Model()


async def start(cluster: Any, *numbers: int, workers: int = 1, release: str = "0.32.0") -> list[Any]:
    pods = [await cluster.start_pod(f"127.0.0.{number}") for number in numbers]
    for pod in pods:
        pod.backend, pod.workers, pod.release = "nccl", workers, release
    return pods


def sync(transport: WeightSync, model: Model) -> None:
    transport.pause()
    transport.send_weights(model.parameters())
    transport.resume()


async def started(cluster: Any, model: Model, **more: Any) -> WeightSync:
    transport = WeightSync.over(cluster.settings, NCCL(model.parameters, dtype="bfloat16", **more))
    await on_main_thread(transport.init_weight_transfer)
    return transport


async def test_one_broadcast_reaches_all_pods_under_the_next_version(cluster: Any, model: Model) -> None:
    pods = await start(cluster, 1, 2)
    transport = await started(cluster, model)
    await on_main_thread(lambda: sync(transport, model))
    assert [pod.version for pod in pods] == ["demo:1:1"] * 2
    assert not any(pod.paused for pod in pods)
    (message,) = FakeCommunicator.made[0].sent
    assert torch.equal(message[:12].view(torch.bfloat16), torch.ones(6, dtype=torch.bfloat16))
    assert torch.equal(message[12:].clone().view(torch.int64), torch.arange(4))
    await on_main_thread(transport.destroy)


async def test_the_pods_are_told_what_comes(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    transport = await started(cluster, model)
    await on_main_thread(lambda: sync(transport, model))
    assert pod.announced == [
        {"names": ["a.weight", "b.index"], "dtype_names": ["bfloat16", "int64"], "shapes": [[2, 3], [4]]}
    ]
    await on_main_thread(transport.destroy)


async def test_ranks_are_given_out_pod_by_pod(cluster: Any, model: Model) -> None:
    pods = await start(cluster, 1, 2, workers=2)
    transport = await started(cluster, model)
    assert [(pod.joined[0]["rank_offset"], pod.joined[0]["world_size"]) for pod in pods] == [(1, 5), (3, 5)]
    assert FakeCommunicator.made[0].world_size == 5
    await on_main_thread(transport.destroy)


async def test_an_older_release_learns_of_the_packing_with_each_update(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1, release="0.25.0")
    pod.knows_version = False
    transport = await started(cluster, model)
    await on_main_thread(lambda: sync(transport, model))
    assert "packed" not in pod.joined[0]
    assert {"master_address", "master_port"} <= pod.joined[0].keys()
    assert pod.announced[0]["packed"] is True
    assert list((await transport.pod_versions()).values()) == ["demo:1:1"]
    await on_main_thread(transport.destroy)


async def test_a_newer_release_gets_the_id_and_the_packing_at_once(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    transport = await started(cluster, model)
    assert {"nccl_unique_id_b64", "packed"} <= pod.joined[0].keys()
    assert "master_address" not in pod.joined[0]
    await on_main_thread(transport.destroy)


async def test_an_update_that_a_killed_trainer_left_is_closed_and_its_group_left(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    pod.active = True
    transport = await started(cluster, model)
    assert pod.calls.index("/finish_weight_update") < pod.calls.index("/shutdown_weight_transfer_engine")
    await on_main_thread(lambda: sync(transport, model))
    assert pod.version == "demo:1:1"
    await on_main_thread(transport.destroy)


async def test_servers_of_several_workers_take_sync_after_sync(cluster: Any, model: Model) -> None:
    pods = await start(cluster, 1, 2, workers=2)
    transport = await started(cluster, model)
    for number in (1, 2):
        await on_main_thread(lambda: sync(transport, model))
        assert [pod.version for pod in pods] == [f"demo:1:{number}"] * 2
    await on_main_thread(transport.destroy)


async def test_a_new_pod_joins_at_the_next_sync(cluster: Any, model: Model) -> None:
    await start(cluster, 1)
    transport = await started(cluster, model)
    await on_main_thread(lambda: sync(transport, model))
    (added,) = await start(cluster, 2)
    await until(lambda: transport.wants_resend)
    await on_main_thread(lambda: sync(transport, model))
    assert added.version == "demo:1:2"
    assert [group.world_size for group in FakeCommunicator.made] == [2, 3]
    assert FakeCommunicator.made[0].aborted
    await on_main_thread(transport.destroy)


async def test_a_pod_that_restarted_gets_the_same_version_again_between_syncs(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    transport = await started(cluster, model)
    await on_main_thread(lambda: sync(transport, model))
    assert not transport.wants_resend
    pod.version = "default"
    await until(lambda: transport.wants_resend)
    await on_main_thread(transport.resend)
    assert pod.version == "demo:1:1"
    assert not pod.paused
    assert transport.stats.repairs == 1
    await on_main_thread(transport.destroy)


async def test_what_was_missing_before_a_sync_is_not_missing_after_it(cluster: Any, model: Model) -> None:
    await start(cluster, 1)
    transport = await started(cluster, model)
    await until(lambda: "default" in transport.held().pods.values())
    await asyncio.sleep(3 * cluster.settings.repair_seconds)  # the watcher has looked
    await on_main_thread(lambda: sync(transport, model))
    assert not transport.wants_resend
    await on_main_thread(transport.destroy)


async def test_weights_that_changed_since_are_never_sent_under_the_old_label(cluster: Any, model: Model) -> None:
    lost, _ = await start(cluster, 1, 2)
    transport = await started(cluster, model)
    await on_main_thread(lambda: sync(transport, model))
    model.tensors["a.weight"].add_(1)
    lost.version = "default"
    await until(lambda: transport.wants_resend)
    await on_main_thread(transport.resend)  # the other pod goes on; this one waits for the next sync
    assert lost.version == "default"
    await on_main_thread(transport.destroy)


async def test_where_no_pod_is_left_and_nothing_can_be_sent_again_the_attempt_ends(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    transport = await started(cluster, model, resendable=False)
    await on_main_thread(lambda: sync(transport, model))
    pod.version = "default"
    await until(lambda: transport.wants_resend)
    with pytest.raises(WeightSyncError, match="no vLLM pod holds weights demo:1:1 any more"):
        await on_main_thread(transport.resend)
    await on_main_thread(transport.destroy)


async def test_a_failed_broadcast_takes_the_label_from_every_pod_and_resumes_it(cluster: Any, model: Model) -> None:
    pods = await start(cluster, 1, 2)
    transport = await started(cluster, model)
    await on_main_thread(lambda: sync(transport, model))
    FakeCommunicator.fail = "unhandled cuda error"
    with pytest.raises(WeightSyncError, match="demo:1:2 failed: unhandled cuda error"):
        await on_main_thread(lambda: sync(transport, model))
    assert [pod.version for pod in pods] == ["default"] * 2
    assert not any(pod.paused or pod.active for pod in pods)
    assert FakeCommunicator.made[0].aborted
    FakeCommunicator.fail = ""
    await on_main_thread(lambda: sync(transport, model))
    assert [pod.version for pod in pods] == ["demo:1:3"] * 2
    await on_main_thread(transport.destroy)


async def test_a_pod_that_refuses_the_update_aborts_the_broadcast(cluster: Any, model: Model) -> None:
    _, bad = await start(cluster, 1, 2)
    transport = await started(cluster, model)
    bad.fail_updates = 1
    with pytest.raises(WeightSyncError, match="something broke"):
        await on_main_thread(lambda: sync(transport, model))
    assert FakeCommunicator.made[0].aborted
    await on_main_thread(transport.destroy)


async def test_another_model_than_announced_is_refused(cluster: Any, model: Model) -> None:
    await start(cluster, 1)
    transport = await started(cluster, model)
    await on_main_thread(transport.pause)
    with pytest.raises(WeightSyncError, match=r"the model gave c where a\.weight \[2, 3\] was announced"):
        await on_main_thread(lambda: transport.send_weights(iter([("c", torch.ones(1))])))
    await on_main_thread(transport.destroy)


async def test_without_pods_the_deadline_counts(cluster: Any, model: Model) -> None:
    transport = WeightSync.over(replace(cluster.settings, timeout_seconds=1.0), NCCL(model.parameters))
    with pytest.raises(NoServersError):
        await on_main_thread(transport.init_weight_transfer)
    await on_main_thread(transport.destroy)


class Gate:
    """Holds broadcasts back until it is opened."""

    def __init__(self, library: type[FakeCommunicator], monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        whole = library.broadcast

        def broadcast(communicator: FakeCommunicator, tensor: Any) -> None:
            assert self.opened.wait(60)
            whole(communicator, tensor)

        monkeypatch.setattr(library, "broadcast", broadcast)


def copying(model: Model, has_room: bool = True, max_staleness: int = 1) -> NCCL:
    return NCCL(model.parameters, dtype="bfloat16", max_staleness=max_staleness, has_room=lambda size: has_room)


async def synced_once(cluster: Any, model: Model, transport: NCCL) -> WeightSync:
    made = WeightSync.over(cluster.settings, transport)
    await on_main_thread(made.init_weight_transfer)
    await on_main_thread(lambda: sync(made, model))
    return made


def weights_of(message: Any) -> list[float]:
    """Of `a.weight`."""
    return [float(value) for value in message[:12].view(torch.bfloat16)]


async def test_a_copy_leaves_while_training_changes_the_weights(
    cluster: Any, model: Model, library: type[FakeCommunicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    (pod,) = await start(cluster, 1)
    made = await synced_once(cluster, model, copying(model))
    gate = Gate(library, monkeypatch)
    model.tensors["a.weight"].fill_(2)
    await on_main_thread(lambda: sync(made, model))  # returns though nothing can be sent
    model.tensors["a.weight"].fill_(3)
    assert (pod.version, made.numbers.held) == ("demo:1:1", 1)
    assert not made.wants_resend
    gate.opened.set()
    await until(lambda: pod.version == "demo:1:2" and not pod.paused)
    assert made.numbers.held == 2
    assert weights_of(library.made[0].sent[-1]) == [2.0] * 6
    await on_main_thread(made.destroy)


async def test_one_copy_arrives_before_the_next_is_made(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    made = await synced_once(cluster, model, copying(model))
    for number in range(2, 8):
        model.tensors["a.weight"].fill_(number)
        await on_main_thread(lambda: sync(made, model))
    await until(lambda: pod.version == "demo:1:7" and not pod.paused)
    assert [weights_of(message)[0] for message in FakeCommunicator.made[0].sent] == [1, 2, 3, 4, 5, 6, 7]
    await on_main_thread(made.destroy)


async def test_the_last_copy_arrives_before_the_end(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    made = await synced_once(cluster, model, copying(model))
    await on_main_thread(lambda: sync(made, model))
    await on_main_thread(made.destroy)
    assert pod.version == "demo:1:2"


async def test_a_copy_that_does_not_arrive_ends_the_attempt_at_the_next_sync(cluster: Any, model: Model) -> None:
    (pod,) = await start(cluster, 1)
    made = await synced_once(cluster, model, copying(model))
    FakeCommunicator.fail = "no link"
    await on_main_thread(lambda: sync(made, model))
    with pytest.raises(WeightSyncError, match="no link"):
        await on_main_thread(lambda: sync(made, model))
    assert pod.version == "default"  # it may hold half of it
    assert not pod.paused
    await on_main_thread(made.destroy)


@pytest.mark.parametrize(("has_room", "max_staleness"), [(False, 1), (True, 0)])
async def test_without_room_or_on_policy_every_sync_is_waited_for(
    cluster: Any, model: Model, has_room: bool, max_staleness: int
) -> None:
    (pod,) = await start(cluster, 1)
    made = await synced_once(cluster, model, copying(model, has_room, max_staleness))
    await on_main_thread(lambda: sync(made, model))
    assert (pod.version, pod.paused) == ("demo:1:2", False)
    await on_main_thread(made.destroy)


async def test_memory_that_is_used_up_later_makes_training_wait(
    cluster: Any, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pod,) = await start(cluster, 1)
    made = await synced_once(cluster, model, copying(model))

    def no_room(packer: Any) -> list[Any]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("gymtrain_trainer.weights.transports.nccl.packing.Packer.room", no_room)
    for number in (2, 3):
        await on_main_thread(lambda: sync(made, model))
        assert (pod.version, pod.paused) == (f"demo:1:{number}", False)
    await on_main_thread(made.destroy)
