"""Unmodified NeMo Gym servers under the launcher, with a policy that answers as vLLM does."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gymtrain_api.spec import ReasoningGymTask
from gymtrain_gym.datasets import generated
from gymtrain_gym.server import workspace
from tests.support.fake_policy import Message
from tests.support.gym_cluster import GymCluster, PolicyCluster, resources_server, simple_agent

pytestmark = [pytest.mark.gym, pytest.mark.asyncio(loop_scope="module")]

MAIL_CALL = {"id": "call_1", "type": "function", "function": {"name": "email_search_emails", "arguments": "{}"}}


def reply(messages: list[Message]) -> Message:
    """A sum gets its result; a mail task gets one tool call, then an end."""
    last = messages[-1]
    if found := re.search(r"(\d+) ([+-]) (\d+) =$", str(last.get("content"))):
        first, sign, second = found.groups()
        return {"content": f"<answer>{int(first) + int(sign + second)}</answer>"}
    if last["role"] == "user":
        return {"content": "Let me look.", "tool_calls": [MAIL_CALL]}
    return {"content": "Done."}


def sum_row() -> dict[str, Any]:
    task = ReasoningGymTask(task="chain_sum", size=1, config={"min_terms": 2, "max_terms": 2})
    row: dict[str, Any] = json.loads(next(generated.rows(task)))
    return row


def mail_row() -> dict[str, Any]:
    file = workspace.find(Path("resources_servers/workplace_assistant/data/example.jsonl"), workspace.roots())
    assert file is not None
    row: dict[str, Any] = json.loads(file.read_text().splitlines()[0])
    return row


class Servers(PolicyCluster):
    """The cluster of this module."""

    async def post(self, name: str, path: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
        timeout = aiohttp.ClientTimeout(total=60)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(self.url(name, path), json=body, **kwargs) as response,
        ):
            return response.status, await response.json()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    config = {
        "reasoning_gym": resources_server("reasoning_gym"),
        "sums": simple_agent("reasoning_gym"),
        "workplace_assistant": resources_server("workplace_assistant"),
        "mails": simple_agent("workplace_assistant", max_steps=6),
        # Started by the tests that stop it.
        "other_sums": simple_agent("reasoning_gym"),
        "notes": "x" * 200_000,  # more than one environment variable can hold at exec()
    }
    names = ["head_server", "reasoning_gym", "sums", "workplace_assistant", "mails"]
    async with Servers.started(tmp_path_factory.mktemp("servers"), reply, config, names) as servers:
        yield servers


async def test_right_answer_earns_its_reward_with_token_ids(servers: Servers) -> None:
    status, body = await servers.post("sums", "/run", sum_row())
    assert (status, body["reward"]) == (200, 1.0)
    turn = body["response"]["output"][-1]
    text = turn["content"][0]["text"]
    assert bytes(turn["generation_token_ids"]).decode() == text
    assert len(turn["generation_log_probs"]) == len(text)
    assert turn["prompt_token_ids"]


async def test_every_turn_carries_its_token_ids_on_its_last_item(servers: Servers) -> None:
    status, body = await servers.post("mails", "/run", mail_row())
    assert status == 200
    kinds = [(item["type"], "generation_token_ids" in item) for item in body["response"]["output"]]
    assert kinds == [("message", False), ("function_call", True), ("function_call_output", False), ("message", True)]


async def test_stateful_tool_call_reaches_its_session(servers: Servers) -> None:
    _, body = await servers.post("mails", "/run", mail_row())
    output = body["response"]["output"][2]["output"]
    assert "emails" in json.loads(output)["output"]


async def test_rollout_of_a_lost_session_is_not_scored(servers: Servers) -> None:
    row = mail_row()
    _, body = await servers.post("mails", "/run", row)
    request = {**row, "response": body["response"]}
    lost = "eyJzZXNzaW9uX2lkIjogImdvbmUifQ==.x.y"  # {"session_id": "gone"}, from a process that ended
    cookies = {"WorkbenchResourcesServer___workplace_assistant": lost}
    assert (await servers.post("workplace_assistant", "/verify", request, cookies=cookies))[0] == 409
    assert (await servers.post("workplace_assistant", "/verify", request))[0] == 200


async def test_head_serves_the_config(servers: Servers) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(servers.url("head_server", "/global_config_dict_yaml")) as response,
    ):
        text = await response.text()
    assert "workplace_assistant" in text


async def test_head_does_not_show_secrets(servers: Servers) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(servers.url("head_server", "/global_config_dict_yaml")) as response,
    ):
        assert "${oc.env:POLICY_API_KEY,dummy}" in await response.text()


async def test_no_server_starts_ray(servers: Servers) -> None:
    assert all("ray" not in servers.log(name).lower() for name in ("sums", "reasoning_gym", "policy_model"))


async def test_row_that_the_verifier_refuses_is_an_error_not_a_zero(servers: Servers) -> None:
    status, body = await servers.post("sums", "/run", {"responses_create_params": {"input": "1 + 1 ="}})
    assert status == 500
    assert "calling an inner server" in body


async def test_rollouts_in_flight_are_finished_on_sigterm(servers: Servers) -> None:
    servers.start("other_sums")
    await servers.ready("other_sums")
    servers.policy.delay = 4.0
    try:
        running = [asyncio.create_task(servers.post("other_sums", "/run", sum_row())) for _ in range(8)]
        await asyncio.sleep(1.5)
        servers.terminate("other_sums")
        await asyncio.sleep(1.0)
        late = asyncio.create_task(servers.post("other_sums", "/run", sum_row()))  # its Service still names the pod
        rewards = [body["reward"] for _, body in await asyncio.gather(*running, late)]
        assert rewards == [1.0] * 9
        assert await servers.exit_code("other_sums", 30) == 0
    finally:
        servers.policy.delay = 0.0
        servers.stop(["other_sums"])


async def test_drain_ends_at_its_deadline(servers: Servers) -> None:
    servers.start("other_sums", GYMTRAIN_DRAIN_SECONDS="2")
    await servers.ready("other_sums")
    servers.policy.delay = 30.0
    try:
        running = asyncio.create_task(servers.post("other_sums", "/run", sum_row()))
        await asyncio.sleep(1.0)
        servers.terminate("other_sums")
        started = time.monotonic()
        await servers.exit_code("other_sums", 15)
        assert 1.5 < time.monotonic() - started < 8
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            assert (await running)[0] == 200
    finally:
        servers.policy.delay = 0.0
        servers.stop(["other_sums"])


async def test_idle_server_stops_soon(servers: Servers) -> None:
    servers.start("other_sums")
    await servers.ready("other_sums")
    servers.terminate("other_sums")
    try:
        assert await servers.exit_code("other_sums", 10) == 0
    finally:
        servers.stop(["other_sums"])


async def ending_of(folder: Path, config: dict[str, Any], name: str) -> tuple[int, str]:
    """Exit code and last line of a server that can't start."""
    cluster = GymCluster(folder, config)
    cluster.start(name)
    try:
        code = await cluster.exit_code(name, 60)
        return code, cluster.log(name).splitlines()[-1]
    finally:
        cluster.stop()


async def test_unknown_server_ends_with_a_message(tmp_path: Path) -> None:
    code, line = await ending_of(tmp_path, {"head_server": {}, "sums": simple_agent("x")}, "sum")
    assert (code, line) == (78, f"gymtrain: {tmp_path}/config.yaml has no server 'sum': the nearest is 'sums'")


async def test_missing_code_ends_with_a_message(tmp_path: Path) -> None:
    code, line = await ending_of(tmp_path, {"head_server": {}, "a": resources_server("nothing")}, "a")
    assert code == 78
    assert line.startswith("gymtrain: no server code in resources_servers/nothing")


async def test_missing_package_ends_with_a_message(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "own"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("import surely_not_installed\n")
    code, line = await ending_of(tmp_path, {"head_server": {}, "a": resources_server("own")}, "a")
    assert code == 1
    assert line.startswith("gymtrain: server 'a' needs the Python packages surely_not_installed")


async def test_server_that_fails_to_start_ends_with_the_reason(tmp_path: Path) -> None:
    code, line = await ending_of(tmp_path, {"head_server": {}, "a": simple_agent("x", max_steps="many")}, "a")
    assert code == 1
    assert line.startswith("gymtrain: server 'a' failed: ValidationError")


async def test_address_that_is_taken_ends_with_a_message(servers: Servers, tmp_path: Path) -> None:
    cluster = GymCluster(tmp_path, {"head_server": {}})
    config = tmp_path / "config.yaml"
    config.write_text(f"head_server: {{host: x, port: {servers.ports['head_server']}}}\n")
    cluster.start("head_server")
    try:
        assert await cluster.exit_code("head_server", 60) == 1
        assert "gymtrain: can't listen on port " in cluster.log("head_server")
    finally:
        cluster.stop()


RAY_SERVER = """
import os
from pathlib import Path
import ray
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer
from resources_servers.probe.naming import TABLE

@ray.remote
def elsewhere():
    return os.getpid()

class Probe(SimpleResourcesServer):
    def setup_webserver(self):
        app = super().setup_webserver()
        app.get("/probe")(self.probe)
        return app

    async def probe(self):
        Path("cache.txt").write_text("x")
        return {"remote": await elsewhere.remote(), "own": os.getpid(), "read": Path(TABLE).read_text()}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse: ...

if __name__ == "__main__":
    Probe.run_webserver()
"""


async def test_server_that_uses_ray_gets_one_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "probe"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(RAY_SERVER)
    (folder / "naming.py").write_text("TABLE = 'table.txt'\n")
    (folder / "table.txt").write_text("rows")
    cluster = Servers(tmp_path, {"head_server": {}, "probe": resources_server("probe"), "notes": "x" * 200_000})
    cluster.start("probe", TMPDIR="/tmp")  # Ray's sockets need a short path
    try:
        await cluster.ready("probe")
        async with aiohttp.ClientSession() as session, session.get(cluster.url("probe", "/probe")) as response:
            body = await response.json()
        assert body["remote"] != body["own"]
        assert body["read"] == "rows"
        assert not (folder / "cache.txt").exists()
        cluster.terminate("probe")
        assert await cluster.exit_code("probe", 40) == 0
    finally:
        cluster.stop()
