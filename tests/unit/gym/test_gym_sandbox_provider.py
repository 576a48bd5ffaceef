"""NeMo Gym's own Sandbox with the provider `gymtrain`, in front of a broker and daemons that run commands here."""

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxCreateError, SandboxSpec, SandboxStatus

from gymtrain_gym.sandbox import broker_client, daemon_client, lost_sandboxes
from gymtrain_gym.sandbox import provider as provider_module
from gymtrain_gym.sandbox.errors import (
    SandboxFileError,
    SandboxLostError,
    SandboxSettingsError,
    SandboxUnavailableError,
)
from gymtrain_gym.sandbox.http_sessions import Sessions
from gymtrain_gym.sandbox.provider import GymtrainProvider
from tests.support.fake_sandboxes import Ended, FakeSandboxes

pytestmark = pytest.mark.gym

IMAGE = "gymtrain/swe-x:dev"


@pytest_asyncio.fixture
async def sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeSandboxes]:
    monkeypatch.setattr(daemon_client, "RETRY_SECONDS", 3.0)
    monkeypatch.setattr(broker_client, "PATIENCE_SECONDS", 10.0)
    monkeypatch.setattr(provider_module, "NEWS_SECONDS", 1.5)
    async with FakeSandboxes(tmp_path) as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


def spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec(image=IMAGE, **fields)


async def started(provider: dict[str, Any] | None = None, **fields: Any) -> AsyncSandbox:
    return await AsyncSandbox({"gymtrain": provider or {}}, spec(**fields)).start()


async def test_a_command_gives_its_output_and_exit_code(sandboxes: FakeSandboxes) -> None:
    async with await started() as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.return_code, result.error_type) == ("out\n", "err\n", 3, None)


async def test_environment_and_folder_of_the_spec_hold_for_every_command(
    sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    async with await started(workdir=str(tmp_path / "work"), env={"A": "1", "B": "1"}) as sandbox:
        result = await sandbox.exec("pwd; echo $A$B", env={"B": "2"})
    assert result.stdout == f"{tmp_path}/work\n12\n"


async def test_an_entry_point_tells_nemo_gym_of_the_provider(sandboxes: FakeSandboxes) -> None:
    from nemo_gym.sandbox import get_provider_class

    assert get_provider_class("gymtrain") is GymtrainProvider


async def test_a_stopped_sandbox_is_closed_at_the_broker(sandboxes: FakeSandboxes) -> None:
    async with await started():
        assert len(sandboxes.open()) == 1
    assert sandboxes.open() == []


async def test_the_request_says_what_the_agent_wants(sandboxes: FakeSandboxes) -> None:
    wanted: dict[str, Any] = {
        "resources": {"cpu": 2, "memory_mib": 8192, "disk_gib": 20},
        "metadata": {"instance_id": "psf__requests-1", "benchmark": "x"},
        "ttl_s": 18000,
        "provider_options": {"platform": {"os": "linux", "arch": "amd64"}},
    }
    async with await started(**wanted):
        request = sandboxes.open()[0].request
    assert request["image"] == IMAGE
    assert request["task"] == "psf__requests-1"
    assert request["resources"] == {"cpu": 2.0, "memoryMiB": 8192, "diskGiB": 20}
    assert request["ttlSeconds"] == 18000
    assert "timeoutSeconds" not in request  # the run's spec decides how long the queue may be


async def test_a_place_in_the_queue_is_waited_for(sandboxes: FakeSandboxes) -> None:
    sandboxes.polls = 3
    async with await started() as sandbox:
        assert (await sandbox.exec("echo x")).stdout == "x\n"


async def test_a_full_queue_and_a_broker_that_restarts_cost_time_only(sandboxes: FakeSandboxes) -> None:
    sandboxes.answer_first = [429, 503, 500]
    async with await started() as sandbox:
        assert (await sandbox.exec("echo x")).return_code == 0
    assert len(sandboxes.boxes) == 1


async def test_a_queue_that_stays_full_is_not_waited_for_without_end(
    sandboxes: FakeSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_client, "FULL_QUEUE_SECONDS", 1.0)
    sandboxes.answer_first = [429] * 100_000
    async with asyncio.timeout(10):
        with pytest.raises(
            SandboxUnavailableError,
            match=r"queue was still full after 1 s.*spec\.sandboxes\.maxConcurrent or maxQueued",
        ):
            await started()


async def test_a_place_in_the_queue_is_kept_for_as_long_as_the_broker_keeps_it(
    sandboxes: FakeSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's spec limits that wait, with times that may be longer."""
    monkeypatch.setattr(broker_client, "FULL_QUEUE_SECONDS", 0.0)
    sandboxes.polls = 20
    async with await started() as sandbox:
        assert (await sandbox.exec("echo x")).return_code == 0


async def test_a_queue_that_a_restarted_broker_forgot_is_joined_again(sandboxes: FakeSandboxes) -> None:
    sandboxes.polls = 10_000_000
    provider = GymtrainProvider()
    creating = asyncio.create_task(provider.create(spec()))
    await sandboxes.until(lambda: bool(sandboxes.boxes))
    first = sandboxes.boxes.copy()
    sandboxes.polls = 0
    sandboxes.boxes.clear()
    handle = await creating
    assert handle.sandbox_id not in first
    await provider.close(handle)


async def test_a_refused_request_is_an_error_that_quotes_the_broker(sandboxes: FakeSandboxes) -> None:
    sandboxes.answer_first = [422]
    with pytest.raises(
        SandboxCreateError, match=r"no sandbox of gymtrain/swe-x:dev: the broker answered 422.*come again"
    ):
        await started()


async def test_a_sandbox_that_fails_to_start_is_an_error_with_its_reason(sandboxes: FakeSandboxes) -> None:
    sandboxes.polls = 10_000_000
    creating = asyncio.create_task(started())
    await sandboxes.until(lambda: bool(sandboxes.boxes))
    box = next(iter(sandboxes.boxes.values()))
    box.state, box.reason, box.message, box.polls_left = "Failed", "ImagePull", "no such image", 0
    with pytest.raises(SandboxUnavailableError, match=r"Failed \(ImagePull\) no such image"):
        await creating


async def test_a_sandbox_that_takes_too_long_is_given_back(sandboxes: FakeSandboxes) -> None:
    sandboxes.polls = 10_000_000
    with pytest.raises(SandboxUnavailableError, match="ready_timeout_s"):
        await started(ready_timeout_s=0.2)
    assert sandboxes.open() == []


async def test_a_cancelled_creation_leaves_no_sandbox(sandboxes: FakeSandboxes) -> None:
    sandboxes.polls = 10_000_000
    creating = asyncio.create_task(started())
    await sandboxes.until(lambda: bool(sandboxes.boxes))
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert sandboxes.open() == []


async def test_an_unknown_option_is_refused_by_name(sandboxes: FakeSandboxes) -> None:
    with pytest.raises(SandboxUnavailableError, match="provider_options volumes are unknown to the provider gymtrain"):
        await started(provider_options={"volumes": ["/x"]})


async def test_a_command_that_takes_too_long_is_a_timeout_with_what_it_said(sandboxes: FakeSandboxes) -> None:
    async with await started() as sandbox:
        result = await sandbox.exec("sleep 30", timeout_s=0.3)
    assert (result.return_code, result.error_type) == (125, "timeout")
    assert result.stdout == "before\n"
    assert "ended after 0.3 s" in str(result.stderr)


async def test_a_killed_command_has_a_shells_exit_code(sandboxes: FakeSandboxes) -> None:
    async with await started() as sandbox:
        result = await sandbox.exec("kill -9 $$")
    assert (result.return_code, result.error_type) == (137, None)


async def test_what_the_daemon_refuses_is_a_result_for_the_agent(sandboxes: FakeSandboxes) -> None:
    sandboxes.refuse_exec = [(400, "bad_request", "a zero byte in the command")]
    async with await started() as sandbox:
        result = await sandbox.exec("echo x")
    assert (result.return_code, result.error_type) == (125, "sandbox")
    assert result.stderr == "the command was not started: a zero byte in the command"


async def test_a_busy_daemon_is_asked_again(sandboxes: FakeSandboxes) -> None:
    sandboxes.refuse_exec = [(429, "too_many", "256 commands run"), (503, "too_many_files", "end some")]
    async with await started() as sandbox:
        assert (await sandbox.exec("echo x")).stdout == "x\n"
    assert len(sandboxes.execs) == 3


async def test_commands_run_as_the_user_of_the_spec_unless_they_name_one(sandboxes: FakeSandboxes) -> None:
    async with await started(provider_options={"user": 1000}) as sandbox:
        await sandbox.exec("true")
        await sandbox.exec("true", user="root")
    assert [body["user"] for body in sandboxes.execs] == ["1000", "root"]


async def test_a_connection_that_breaks_is_an_error_and_the_command_is_not_repeated(sandboxes: FakeSandboxes) -> None:
    sandboxes.break_exec = True
    async with await started() as sandbox:
        with pytest.raises(SandboxLostError, match=r"is lost.*The broker says: Running"):
            await sandbox.exec("echo x")
    assert len(sandboxes.execs) == 1


async def test_a_broker_that_hears_of_the_end_a_moment_later_still_says_why(sandboxes: FakeSandboxes) -> None:
    sandboxes.break_exec = True
    async with await started() as sandbox:
        box = sandboxes.open()[0]

        def end() -> None:
            box.state, box.reason, box.message = "Failed", "OOMKilled", "it used more memory than its limit"

        asyncio.get_running_loop().call_later(0.7, end)
        with pytest.raises(SandboxLostError, match=r"Failed \(OOMKilled\) it used more memory than its limit"):
            await sandbox.exec("echo x")


@pytest.mark.parametrize("use", ["exec", "upload", "download"])
async def test_what_is_in_a_lost_sandboxs_place_is_left_alone(
    sandboxes: FakeSandboxes, tmp_path: Path, use: str
) -> None:
    """A pod that is reused keeps its address and its token."""
    (tmp_path / "file").write_text("of the next task")
    (tmp_path / "own").write_text("mine")
    calls: dict[str, Callable[[AsyncSandbox], Awaitable[Any]]] = {
        "exec": lambda sandbox: sandbox.exec("echo mine >file"),
        "upload": lambda sandbox: sandbox.upload(tmp_path / "own", str(tmp_path / "file")),
        "download": lambda sandbox: sandbox.download(str(tmp_path / "file"), tmp_path / "got"),
    }
    async with await started() as sandbox:
        await sandbox.exec("true")
        sandboxes.open()[0].instance = "second"
        with pytest.raises(SandboxLostError, match="a new one in its place"):
            await calls[use](sandbox)
    assert len(sandboxes.execs) == 1
    assert (tmp_path / "file").read_text() == "of the next task"
    assert not (tmp_path / "got").exists()


async def test_a_sandbox_that_is_being_reset_is_lost_at_once(sandboxes: FakeSandboxes, tmp_path: Path) -> None:
    async with await started() as sandbox:
        sandboxes.resetting = True
        asyncio.get_running_loop().call_later(1, setattr, sandboxes, "resetting", False)
        with pytest.raises(SandboxLostError, match="is being reset"):
            await sandbox.exec("echo x")
        sandboxes.resetting = True
        with pytest.raises(SandboxLostError, match="is being reset"):
            await sandbox.download("/etc/hostname", tmp_path / "got")
    assert sandboxes.execs == []


async def test_a_command_that_a_reset_killed_has_no_result(sandboxes: FakeSandboxes) -> None:
    sandboxes.cut_exec = True
    async with await started() as sandbox:
        with pytest.raises(SandboxLostError, match="its answer ended before the command did"):
            await sandbox.exec("echo x")


async def test_a_file_is_sent_again_where_no_connection_came(
    sandboxes: FakeSandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_text("text")
    connect, failures = aiohttp.TCPConnector.connect, [aiohttp.ConnectionTimeoutError("no answer") for _ in range(2)]

    async def connect_or_not(self: aiohttp.TCPConnector, *arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await connect(self, *arguments, **named)

    async with await started() as sandbox:
        monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect_or_not)
        await sandbox.upload(tmp_path / "source", str(tmp_path / "there"))
    assert (tmp_path / "there").read_text() == "text"


async def test_a_file_that_takes_too_long_is_given_up(
    sandboxes: FakeSandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_client, "_FILE_SECONDS", 0.2)

    async def endless(self: aiohttp.TCPConnector, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(60)

    async with await started() as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(aiohttp.TCPConnector, "connect", endless)
            with pytest.raises(SandboxLostError, match=r"a file took longer than 0\.2 s"):
                await daemon_client.read_file(Sessions(), sandbox._handle.raw, "/etc/hostname", tmp_path / "got")


async def test_a_sandbox_that_is_gone_is_an_error_that_says_why(sandboxes: FakeSandboxes) -> None:
    async with await started() as sandbox:
        box = sandboxes.open()[0]
        box.state, box.reason, box.message = "Closed", "Expired", "its TTL of 60 s passed"
        with pytest.raises(SandboxLostError, match=r"Closed \(Expired\) its TTL of 60 s passed"):
            await sandbox.exec("echo x")
        assert await sandbox.status() is SandboxStatus.STOPPED


async def test_a_lost_sandbox_is_noted_with_the_request_that_lost_it(sandboxes: FakeSandboxes) -> None:
    async def request(lose: bool) -> list[str]:
        with lost_sandboxes.collecting() as lost:
            async with await started() as sandbox:
                if lose:
                    sandboxes.boxes[sandbox._handle.sandbox_id].state = "Failed"
                with contextlib.suppress(SandboxLostError):
                    await asyncio.create_task(sandbox.exec("echo x"))
            return list(lost)

    (lost,), kept = await asyncio.gather(request(True), request(False))
    assert "is lost" in lost
    assert kept == []


async def test_a_sandbox_that_never_came_is_noted_too_and_in_the_blocking_way(sandboxes: FakeSandboxes) -> None:
    sandboxes.answer_first = [422]
    with lost_sandboxes.collecting() as other:
        pass
    with lost_sandboxes.collecting() as lost:
        await asyncio.to_thread(_lose)
    assert (len(lost), other) == (1, [])


async def test_a_loss_of_nobodys_thread_counts_for_all_that_is_under_way(sandboxes: FakeSandboxes) -> None:
    sandboxes.answer_first = [422]
    with lost_sandboxes.collecting() as first, lost_sandboxes.collecting() as second:
        thread = threading.Thread(target=contextvars.Context().run, args=(_lose,))
        thread.start()
        await asyncio.to_thread(thread.join)
    assert (len(first), len(second)) == (1, 1)


def _lose() -> None:
    with contextlib.suppress(SandboxUnavailableError):
        Sandbox({"gymtrain": {}}).start(spec())


async def test_long_output_and_a_long_command_arrive_whole(sandboxes: FakeSandboxes) -> None:
    text = "x" * 200_000  # more than one argument of a program can hold
    async with await started() as sandbox:
        result = await sandbox.exec(f"cat <<'EOF'\n{text}\nEOF\nexit 4")
    assert (result.stdout, result.return_code) == (text + "\n", 4)


async def test_files_go_there_and_back(sandboxes: FakeSandboxes, tmp_path: Path) -> None:
    source, there, back = tmp_path / "a.sh", tmp_path / "deep" / "er" / "b.sh", tmp_path / "got" / "c.sh"
    source.write_bytes(b"\x00\xff" * 100_000)
    source.chmod(0o755)
    async with await started() as sandbox:
        await sandbox.upload(source, str(there))
        await sandbox.download(str(there), back)
    assert back.read_bytes() == source.read_bytes()
    assert there.stat().st_mode & 0o777 == 0o755


async def test_a_file_that_is_too_large_is_refused_by_its_size(sandboxes: FakeSandboxes, tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    async with await started() as sandbox:
        with pytest.raises(SandboxFileError, match=r"sparse in sandbox .* has more than 17179869184 bytes"):
            await sandbox.download(str(sparse), tmp_path / "x")
    assert not [name for name in os.listdir(tmp_path) if "x" in name]


async def test_a_missing_file_is_an_error_that_names_it(sandboxes: FakeSandboxes, tmp_path: Path) -> None:
    async with await started() as sandbox:
        with pytest.raises(SandboxFileError, match="/no/file can't be read"):
            await sandbox.download("/no/file", tmp_path / "x")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".x")]


async def test_files_of_the_spec_are_there_from_the_start(sandboxes: FakeSandboxes, tmp_path: Path) -> None:
    async with await started(files={str(tmp_path / "f"): "text"}) as sandbox:
        assert (await sandbox.exec(f"cat {tmp_path}/f")).stdout == "text"


async def test_commands_can_go_through_the_broker(sandboxes: FakeSandboxes) -> None:
    async with await started({"route": "broker"}) as sandbox:
        assert (await sandbox.exec("echo x")).stdout == "x\n"
    assert any(path.endswith("/daemon/v1/exec") for path in sandboxes.requests)


async def test_the_blocking_sandbox_works_in_many_threads_at_once(sandboxes: FakeSandboxes) -> None:
    async def echo(body: dict[str, Any]) -> Ended:
        return Ended(0, body["shell"].encode())

    sandboxes.execute = echo

    def one(number: int) -> str:
        with Sandbox({"gymtrain": {}}, spec()).start() as sandbox:
            return str(sandbox.exec(str(number)).stdout)

    outputs = await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(5)))
    assert outputs == [str(number) for number in range(5)]
    assert sandboxes.open() == []


async def test_one_provider_serves_sandboxes_that_stop_while_others_work(sandboxes: FakeSandboxes) -> None:
    provider = GymtrainProvider()
    first, second = [await AsyncSandbox(provider, spec()).start() for _ in range(2)]
    working = asyncio.create_task(second.exec("sleep 0.3; echo done"))
    await asyncio.sleep(0.05)
    await first.stop()
    assert (await working).stdout == "done\n"
    assert (await second.exec("echo again")).stdout == "again\n"
    await second.stop()


async def test_another_process_can_connect_to_a_sandbox(sandboxes: FakeSandboxes) -> None:
    provider = GymtrainProvider()
    handle = await provider.create(spec(env={"A": "1"}))
    descriptor = await provider.serialize_handle(handle)
    assert "token" not in str(descriptor)
    other = GymtrainProvider()
    again = await other.connect(descriptor)
    assert (await other.exec(again, "echo $A")).stdout == "1\n"
    await other.close(again)
    with pytest.raises(SandboxUnavailableError, match="can't be connected to: Closed"):
        await other.connect(descriptor)
    await asyncio.gather(provider.aclose(), other.aclose())


async def test_a_broker_that_is_away_at_the_end_does_not_spoil_the_result(
    sandboxes: FakeSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_client, "_CLOSE_SECONDS", 0.1)
    sandbox = await started()
    sandboxes.answer_first = [503] * 100
    await sandbox.stop()


def test_a_pod_without_a_broker_gets_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GYMTRAIN_BROKER_URL", raising=False)
    with pytest.raises(SandboxSettingsError, match=r"GYMTRAIN_BROKER_URL is not set.*spec\.sandboxes"):
        GymtrainProvider()


async def test_a_missing_token_is_an_error_that_names_its_file(
    sandboxes: FakeSandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYMTRAIN_BROKER_TOKEN_FILE", "/no/token")
    with pytest.raises(SandboxSettingsError, match=r"token can't be read.*/no/token"):
        await started()
