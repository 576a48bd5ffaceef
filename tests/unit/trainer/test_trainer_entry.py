"""The parts around training: context, exit codes, termination message, torchrun, checkpoints, signals."""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.wiring import ExitCode, LostRollouts, RunConfig, TrainerProgress, VerifyRoute
from gymtrain_trainer.checkpoints.folder import (
    WorkerState,
    checkpoint_folder,
    claim_folder,
    last_checkpoint,
    write_state,
)
from gymtrain_trainer.context import Context, read_context, read_paths
from gymtrain_trainer.cpus import usable_cpus
from gymtrain_trainer.errors import (
    InterruptedBySignal,
    RefusedError,
    RolloutsStalledError,
    ServersError,
    SettingsError,
)
from gymtrain_trainer.launch import torchrun_arguments, wait_for_name
from gymtrain_trainer.main import exit_code, main
from gymtrain_trainer.monitoring.record import RewardsFile, step_record
from gymtrain_trainer.progress import write_termination_message
from gymtrain_trainer.rollouts.buffer import UsedGroup
from gymtrain_trainer.servers import gym_servers, wait_for_gym, wanted_servers
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import TransportRefusedError, WeightParityError, WeightSyncError
from tests.support.specs import of_a_later_release
from tests.unit.trainer.test_trainer_settings import spec
from tests.unit.trainer.trainer_agent import Agent
from tests.unit.trainer.trainer_data import group


def run_config(**parts: Any) -> RunConfig:
    return RunConfig(
        name="math",
        namespace="lab",
        spec=spec(**parts),
        inference_url="http://math-inference.lab.svc:8000",
        inference_pods_host="math-inference-pods.lab.svc",
        trainer_host="math-trainer.lab.svc",
        agents={"adder": "http://math-gym-adder.lab.svc:8000"},
    )


def context(tmp_path: Path, *, node_rank: int = 0, **parts: Any) -> Context:
    (tmp_path / "run.json").write_text(run_config(**parts).model_dump_json(by_alias=True))
    return read_context(
        {
            "GYMTRAIN_RUN_CONFIG": str(tmp_path / "run.json"),
            "GYMTRAIN_ROOT": str(tmp_path),
            "GYMTRAIN_ATTEMPT": "2",
            "JOB_COMPLETION_INDEX": str(node_rank),
        }
    )


def test_the_context_comes_from_run_json_and_the_pods_environment(tmp_path: Path) -> None:
    made = context(tmp_path, node_rank=3, trainer={"nodes": 4, "processesPerNode": 8})
    assert (made.attempt, made.node_rank, made.nodes, made.processes) == (2, 3, 4, 32)
    assert made.paths.model == tmp_path / "model"
    assert made.run_folder == tmp_path / "checkpoints"


def test_without_overrides_the_paths_are_the_contracts() -> None:
    paths = read_paths({})
    assert (str(paths.model), str(paths.data_index)) == ("/gymtrain/model", "/gymtrain/data/index.json")
    assert str(paths.termination_log) == "/dev/termination-log"


def test_a_missing_run_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_context({"GYMTRAIN_RUN_CONFIG": str(tmp_path / "none.json")})


def test_a_run_json_of_a_later_release_is_read(tmp_path: Path) -> None:
    """The operator was upgraded, this attempt's Job was not, and its pod is made anew."""
    run = run_config(trainer={"nodes": 4})
    file = tmp_path / "run.json"
    document = json.loads(run.model_dump_json(by_alias=True, exclude_defaults=True, exclude={"agents"}))
    file.write_text(json.dumps(of_a_later_release(document)))
    assert read_context({"GYMTRAIN_RUN_CONFIG": str(file)}).run.spec.trainer == run.spec.trainer


def test_a_run_json_that_lacks_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"name": "x"}')
    with pytest.raises(SettingsError, match="of one release"):
        read_context({"GYMTRAIN_RUN_CONFIG": str(tmp_path / "run.json")})


def test_the_number_of_vllm_servers_to_wait_for_is_that_of_now(tmp_path: Path) -> None:
    made = context(tmp_path, inference={"replicas": 4})
    environ = {"GYMTRAIN_RUN_CONFIG": str(tmp_path / "run.json")}
    wanted = wanted_servers(made, environ)
    assert wanted() == 4
    (tmp_path / "run.json").write_text(run_config(inference={"replicas": 2}).model_dump_json(by_alias=True))
    assert wanted() == 2
    (tmp_path / "run.json").write_text("{")
    assert wanted() == 4, "what it knew at its start"


def test_a_refused_start_ends_in_exit_code_78(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMTRAIN_RUN_CONFIG", str(tmp_path / "none.json"))
    assert main() == 78


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError("x"), ExitCode.REFUSED),
        (RolloutsStalledError("x"), ExitCode.RETRY),
        (WeightSyncError("x"), ExitCode.RETRY),
        (WeightParityError("x"), ExitCode.REFUSED),
        (TransportRefusedError("x"), ExitCode.REFUSED),
        (MemoryError(), ExitCode.RETRY),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) == code


def test_a_long_message_fits_the_termination_log(tmp_path: Path) -> None:
    progress = TrainerProgress(phase="failed", step=4, message="begin " + "ü" * 9000 + " end")
    write_termination_message(progress, tmp_path / "log")
    written = (tmp_path / "log").read_bytes()
    assert len(written) <= 4096
    read = TrainerProgress.model_validate_json(written)
    assert read.step == 4
    assert read.message.startswith("begin")
    assert read.message.endswith("end")


def test_many_lost_rollouts_fit_the_termination_log_with_the_message(tmp_path: Path) -> None:
    lost = [LostRollouts(environment="a" * 200, kind="timeout", rollouts=20 - number) for number in range(20)]
    progress = TrainerProgress(phase="failed", message="why " * 100, lost_rollouts=lost)
    write_termination_message(progress, tmp_path / "log")
    written = (tmp_path / "log").read_bytes()
    assert len(written) <= 4096
    read = TrainerProgress.model_validate_json(written)
    assert read.message == progress.message
    assert read.lost_rollouts == lost[: len(read.lost_rollouts)]
    assert len(read.lost_rollouts) > 5


def test_nodes_meet_at_node_0_of_their_attempt(tmp_path: Path) -> None:
    arguments = torchrun_arguments(context(tmp_path, node_rank=1, trainer={"nodes": 2, "processesPerNode": 4}))
    assert "--master-addr=math-trainer-2-0.math-trainer.lab.svc" in arguments
    assert "--node-rank=1" in arguments
    assert "--nproc-per-node=4" in arguments


def test_torchrun_kills_no_process_that_may_still_write_its_checkpoint(tmp_path: Path) -> None:
    assert "--shutdown-timeout=30" in torchrun_arguments(context(tmp_path))
    template = {"spec": {"terminationGracePeriodSeconds": 600}}
    assert "--shutdown-timeout=600" in torchrun_arguments(context(tmp_path, trainer={"template": template}))


def test_a_node_0_without_dns_record_is_named() -> None:
    with pytest.raises(ServersError, match=r"math-trainer-1-0\.invalid"):
        wait_for_name("math-trainer-1-0.invalid", 0.0)


async def test_an_agent_that_does_not_come_up_is_named_with_its_url() -> None:
    said: list[str] = []
    async with Agent() as agent:
        with pytest.raises(ServersError, match=r"agent gone at http://127\.0\.0\.1:9: ClientConnectorError"):
            await wait_for_gym({"agent adder": agent.url, "agent gone": "http://127.0.0.1:9"}, 0.0, said.append)
    assert said == ["Gym agent gone"]


def test_in_mode_verify_the_trainer_waits_for_what_stands_in_for_the_agents() -> None:
    route = VerifyRoute(model_url="http://model:8000", resources_url="http://resources:8000")
    agents = run_config().model_copy(update={"verifiers": {"adder": route}})
    assert gym_servers(agents) == {"agent adder": "http://math-gym-adder.lab.svc:8000"}
    verify = run_config(rollout={"mode": "Verify"}).model_copy(update={"agents": {}, "verifiers": {"adder": route}})
    assert gym_servers(verify) == {
        "model server of adder": "http://model:8000",
        "resources server of adder": "http://resources:8000",
    }


async def test_waiting_ends_once_every_agent_answers() -> None:
    said: list[str] = []
    async with Agent() as agent:
        await wait_for_gym({"adder": agent.url}, 5.0, said.append)
    assert said[-1] == ""


# --- checkpoints ---


def save(folder: Path, step: int, *, whole: bool = True, uid: str = "u1") -> None:
    checkpoint = checkpoint_folder(folder, step)
    checkpoint.mkdir(parents=True)
    if whole:
        write_state(checkpoint, WorkerState(step=step, position=step * 4, attempt=1, uid=uid))


def test_the_last_checkpoint_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    save(tmp_path, 9)
    save(tmp_path, 10)
    found = last_checkpoint(tmp_path, "u1")
    assert found is not None
    assert (found.folder.name, found.state.position) == ("checkpoint-10", 40)


def test_a_checkpoint_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20, whole=False)
    found = last_checkpoint(tmp_path, "u1")
    assert found is not None
    assert found.state.step == 10


def test_the_checkpoint_of_an_earlier_run_of_the_same_name_is_not_resumed(tmp_path: Path) -> None:
    save(tmp_path, 10, uid="u0")
    assert last_checkpoint(tmp_path, "u1") is None


def test_what_an_earlier_run_left_is_moved_aside(tmp_path: Path) -> None:
    for number, uid in enumerate(("u0", "u1")):
        claim_folder(tmp_path, uid)
        save(tmp_path, 10 + number, uid=uid)
        claim_folder(tmp_path, uid)  # a later attempt
        assert last_checkpoint(tmp_path, uid) is not None
    claim_folder(tmp_path, "u2")
    assert (tmp_path / "previous-1" / "checkpoint-10" / "gymtrain.json").exists()
    assert (tmp_path / "previous-2" / "checkpoint-11" / "gymtrain.json").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".gymtrain-run", "previous-1", "previous-2"]


def test_a_new_run_has_no_checkpoint(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none", "u1") is None


# --- the record of a step ---


def used(*rewards: float, staleness: int = 0) -> UsedGroup:
    return UsedGroup(group(0, rewards=rewards), 1 + staleness)


def test_a_steps_reward_is_the_mean_of_the_rollouts_it_used() -> None:
    record = step_record(4, [used(1.0, 0.0), used(0.5, 0.5, staleness=1)], seconds=2.0, now=1.0)
    assert (record.reward, record.groups, record.staleness, record.tokens) == (0.5, 2, 0.5, 8)
    assert record.tokens_per_second == 4.0


def test_a_resumed_attempt_drops_the_rows_after_its_checkpoint(tmp_path: Path) -> None:
    rewards = RewardsFile(tmp_path / "rewards.csv")
    rewards.begin(0)
    for step in (1, 2, 3):
        rewards.append(step_record(step, [used(0.25)], 1.0, now=float(step)))
    rewards.begin(2)
    rewards.append(step_record(3, [used(0.75)], 1.0, now=9.0))
    lines = (tmp_path / "rewards.csv").read_text().split()
    assert lines[0] == "step,reward,reward_std,groups,staleness,tokens,seconds,time,rollout_wait_s,weight_sync_s"
    assert [line.split(",")[:2] for line in lines[1:]] == [["1", "0.25"], ["2", "0.25"], ["3", "0.75"]]


def test_a_row_says_where_the_steps_time_went_as_far_as_it_is_known(tmp_path: Path) -> None:
    rewards = RewardsFile(tmp_path / "rewards.csv")
    rewards.begin(0)
    numbers = {"rollout_wait_s": 0.12345, "weight_sync_s": 0.5, "kl": 1.0}
    rewards.append(step_record(1, [used(1.0)], 2.0, now=1.0, numbers=numbers), step_record(2, [used(1.0)], 2.0))
    first, second = rewards.read()
    assert (first["rollout_wait_s"], first["weight_sync_s"]) == ("0.123", "0.5")
    assert (second["rollout_wait_s"], second["weight_sync_s"]) == ("", "")


def test_rows_of_a_release_with_fewer_columns_are_kept(tmp_path: Path) -> None:
    (tmp_path / "rewards.csv").write_text(
        "step,reward,reward_std,groups,staleness,tokens,seconds,time\n1,0.5,0,1,0,9,1,1\n"
    )
    rewards = RewardsFile(tmp_path / "rewards.csv")
    rewards.begin(1)
    (row,) = rewards.read()
    assert (row["reward"], row["time"], row["weight_sync_s"]) == ("0.5", "1", "")


# --- signals and CPUs ---


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    """Of this process, whose handlers come back."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    made = StopSignal()
    made.install()
    yield made
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])


def test_a_signal_raises_at_once_while_the_trainer_only_waits(stop: StopSignal) -> None:
    with pytest.raises(InterruptedBySignal), stop.waiting():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_a_signal_during_a_step_only_raises_the_flag(stop: StopSignal) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested
    with pytest.raises(InterruptedBySignal), stop.waiting():
        pass


def test_what_a_signal_ends_does_not_wait_for_a_long_operation_of_the_main_thread(stop: StopSignal) -> None:
    ended: list[float] = []
    stop.then(lambda: ended.append(time.monotonic()))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 6_000_000)  # as a backward pass does, it runs no Python and has no lock
    over = time.monotonic()
    assert len(ended) == 1
    assert over - ended[0] > 0.5


def test_a_signal_that_came_before_ends_what_is_begun_after_it_once() -> None:
    ended: list[str] = []
    stop = StopSignal()
    stop.requested = True  # by the handler; the thread that hears of it is late
    stop.then(lambda: ended.append("the rollouts"))
    assert ended == ["the rollouts"]
    stop.request()
    assert ended == ["the rollouts"]


@pytest.mark.parametrize(("limit", "cpus"), [("150000 100000", 2), ("50000 100000", 1)])
def test_a_cpu_limit_bounds_the_threads(limit: str, cpus: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cpus(tmp_path / "cpu.max") == min(cpus, os.process_cpu_count() or 1)


def test_no_limit_leaves_the_affinity(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000")
    assert usable_cpus(tmp_path / "cpu.max") == os.process_cpu_count()


def test_the_run_config_round_trips() -> None:
    assert RunConfig.model_validate(json.loads(run_config().model_dump_json(by_alias=True))) == run_config()
