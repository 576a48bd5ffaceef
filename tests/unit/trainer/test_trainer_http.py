"""The trainer's HTTP port."""

import asyncio
import json
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gymtrain_api.wiring import TrainerProgress
from gymtrain_trainer import serve
from gymtrain_trainer.errors import TrainerError
from gymtrain_trainer.progress import InFlight, ProgressBoard
from gymtrain_trainer.serve import HttpServer, make_app


@pytest.fixture
def board() -> ProgressBoard:
    return ProgressBoard()


@pytest.fixture
async def client(board: ProgressBoard) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    async with TestClient(TestServer(make_app(board))) as client:
        yield client


async def test_progress_is_what_the_board_says(board: ProgressBoard, client: TestClient[Any, Any]) -> None:
    board.update(phase="training", step=7, reward=0.25, weight_version="run:1:8")
    progress = TrainerProgress.model_validate_json(await (await client.get("/progress")).text())
    assert (progress.phase, progress.step, progress.reward, progress.weight_version) == ("training", 7, 0.25, "run:1:8")
    assert progress.updated_at > 0


async def test_the_last_samples_come_newest_first(board: ProgressBoard, client: TestClient[Any, Any]) -> None:
    for number in range(5):
        board.add_sample({"number": number})
    samples = await (await client.get("/samples", params={"limit": "2"})).json()
    assert [sample["number"] for sample in samples] == [4, 3]


async def test_a_limit_that_is_no_number_is_refused(client: TestClient[Any, Any]) -> None:
    assert (await client.get("/samples", params={"limit": "many"})).status == 400


async def test_metrics_follow_the_board(board: ProgressBoard, client: TestClient[Any, Any]) -> None:
    board.update(step=3, max_steps=9, reward=0.5, phase="training", transport="HTTPFull", weight_version="run:1:4")
    board.count("failed_rollouts", 2)
    board.set_numbers({"kl": 0.01})
    text = await (await client.get("/metrics")).text()
    assert "gymtrain_trainer_step 3.0" in text
    assert "gymtrain_trainer_failed_rollouts_total 2.0" in text
    assert 'gymtrain_trainer_step_value{name="kl"} 0.01' in text
    assert 'gymtrain_trainer_info{phase="training",transport="HTTPFull",weight_version="run:1:4"} 1.0' in text


async def test_a_number_that_is_not_known_yet_is_left_out(client: TestClient[Any, Any]) -> None:
    assert "gymtrain_trainer_reward " not in await (await client.get("/metrics")).text()


def test_it_serves_from_a_thread_of_its_own(board: ProgressBoard, unused_tcp_port: int) -> None:
    server = HttpServer(lambda: make_app(board), unused_tcp_port)
    server.start()
    with urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}/progress", timeout=60) as answer:
        assert json.load(answer)["phase"] == "starting"
    server.stop()


def test_connections_are_shared_out_among_its_threads(unused_tcp_port: int) -> None:
    async def thread(_: web.Request) -> web.Response:
        return web.Response(text=str(threading.get_ident()))

    def make() -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/", thread)])
        return app

    server = HttpServer(make, unused_tcp_port, threads=3)
    server.start()
    answers = []
    for _ in range(6):
        with urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}", timeout=60) as answer:
            answers.append(answer.read())
    server.stop()
    assert sorted(Counter(answers).values()) == [2, 2, 2]


def test_a_port_that_is_taken_is_an_error_at_the_start(board: ProgressBoard, unused_tcp_port: int) -> None:
    server = HttpServer(lambda: make_app(board), unused_tcp_port)
    server.start()
    with pytest.raises(TrainerError, match=f"cannot listen on port {unused_tcp_port}"):
        HttpServer(lambda: make_app(board), unused_tcp_port).start()
    server.stop()


async def test_metrics_say_why_groups_were_dropped_and_which_alarms_stand(
    board: ProgressBoard, client: TestClient[Any, Any]
) -> None:
    board.tally("dropped_groups", "stale", by=2)
    board.lose("sums", "timeout", zeroed=True)
    board.lose("sums", "timeout", zeroed=False)
    board.lose("sums", "timeout", zeroed=False)
    board.tally("late_groups", "adder", by=7)
    board.tally("forks", by=3)
    board.tally("masked_rollouts", by=4)
    board.tally("constrained_turns", by=5)
    board.tally("replaced_sampling", "top_k", by=6)
    board.set_alarm("KLHigh", "too high")
    board.in_flight = lambda: InFlight(5, 60.0, {"adder": 5})
    board.update(parity=0.001)
    text = await (await client.get("/metrics")).text()
    for line in (
        'gymtrain_trainer_dropped_groups_by_reason_total{reason="stale"} 2.0',
        'gymtrain_trainer_lost_rollouts_total{environment="sums",kind="timeout",outcome="zeroed"} 1.0',
        'gymtrain_trainer_lost_rollouts_total{environment="sums",kind="timeout",outcome="dropped"} 2.0',
        'gymtrain_trainer_late_groups_total{agent="adder"} 7.0',
        "gymtrain_trainer_forks_total 3.0",
        "gymtrain_trainer_masked_rollouts_total 4.0",
        "gymtrain_trainer_constrained_turns_total 5.0",
        'gymtrain_trainer_replaced_sampling_total{setting="top_k"} 6.0',
        'gymtrain_trainer_alarm{reason="KLHigh"} 1.0',
        'gymtrain_trainer_alarm{reason="Stalled"} 0.0',
        'gymtrain_trainer_alarms_total{reason="KLHigh"} 1.0',
        "gymtrain_trainer_groups_in_flight 5.0",
        "gymtrain_trainer_oldest_group_seconds 60.0",
        "gymtrain_trainer_parity 0.001",
    ):
        assert line in text


async def test_where_files_are_short_it_goes_on_to_accept_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_AGAIN_SECONDS", 0.0)
    connection = mock.Mock()
    answers: list[Any] = [OSError(24, "Too many open files"), (connection, "address")]

    async def accept(_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "sock_accept", accept)
    assert await serve._connection(loop, mock.Mock()) is connection


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
def test_the_port_is_open_at_addresses_of_both_families(board: ProgressBoard, unused_tcp_port: int) -> None:
    server = HttpServer(lambda: make_app(board), unused_tcp_port)
    server.start()
    try:
        assert _answers("127.0.0.1", unused_tcp_port)
        assert _answers("[::1]", unused_tcp_port)
    finally:
        server.stop()


def test_the_port_is_open_on_a_host_without_ipv6(
    board: ProgressBoard, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = HttpServer(lambda: make_app(board), unused_tcp_port)
    server.start()
    try:
        assert _answers("127.0.0.1", unused_tcp_port)
        assert not _answers("[::1]", unused_tcp_port)
    finally:
        server.stop()


def _answers(host: str, port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/progress", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
