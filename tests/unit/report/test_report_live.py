"""The report while its run goes on: search, filters, and what changes in the folder."""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from gymtrain_report.choice import choose
from gymtrain_report.errors import ReportError
from gymtrain_report.folder import RunFolder
from gymtrain_report.index import PAGE, Index
from gymtrain_report.live import Live, serve
from tests.unit.report.report_folders import curves, made, rollout, step_rows, with_tokens, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "run")


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> Index:
    there = Index(RunFolder(folder), tmp_path / "index.sqlite")
    there.update()
    return there


def steps(found: dict[str, Any]) -> list[int]:
    return [one["step"] for one in found["rollouts"]]


def test_words_are_found_where_all_occur_the_last_one_as_it_begins(index: Index) -> None:
    assert steps(index.search({"q": "rooms taken"})) == [4, 3, 2, 1]
    assert steps(index.search({"q": "rooms tak"})) == [4, 3, 2, 1]
    assert steps(index.search({"q": "roo taken", "step": "3"})) == []
    assert index.search({"q": "book_room"})["total"] == 4, "names of tools count"
    assert index.search({"q": "within"})["total"] == 4, "errors count"


@pytest.mark.parametrize("text", ['"', "AND", "taken OR", "(", "NEAR(", "*", "a:b", "-", "''"])
def test_no_word_is_an_operator_of_the_database(index: Index, text: str) -> None:
    assert index.search({"q": text})["total"] in (0, 4)


def test_filters_hold_together(index: Index) -> None:
    assert index.search({})["total"] == 27
    assert index.search({"outcome": "trained", "step": "2"})["total"] == 4
    assert index.search({"outcome": "trained", "step": "2", "group": "5"})["total"] == 2
    assert index.search({"agent": "booker"})["total"] == 4


@pytest.mark.parametrize(
    ("sort", "first"),
    [("newest", (4, 0.0)), ("oldest", (1, 0.0)), ("reward", (4, 1.0)), ("-reward", (4, 0.0))],
)
def test_they_are_sorted(index: Index, sort: str, first: tuple[int, float]) -> None:
    found = index.search({"sort": sort, "outcome": "trained"})["rollouts"]
    assert (found[0]["step"], found[0]["reward"]) == first


def test_rollouts_without_a_reward_come_last(index: Index) -> None:
    assert [index.search({"sort": sort})["rollouts"][-1]["reward"] for sort in ("reward", "-reward")] == [None, None]


def test_a_page_has_an_end_and_the_next_one_goes_on(tmp_path: Path) -> None:
    curves(tmp_path, 1)
    write(tmp_path / "rollouts" / "step-00000001.jsonl", [rollout(1, n, 0) for n in range(PAGE + 7)])
    index = Index(RunFolder(tmp_path), tmp_path / "index.sqlite")
    index.update()
    first, second = index.search({}), index.search({"offset": str(PAGE)})
    assert (len(first["rollouts"]), len(second["rollouts"]), second["total"]) == (PAGE, 7, PAGE + 7)
    assert not {one["id"] for one in first["rollouts"]} & {one["id"] for one in second["rollouts"]}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"step": "x"}, "step is a whole number"), ({"offset": "-1"}, "offset is a"), ({"sort": "1;"}, "sort is one of")],
)
def test_a_value_that_is_none_is_named(index: Index, wanted: dict[str, str], said: str) -> None:
    with pytest.raises(ReportError, match=said):
        index.search(wanted)


def test_the_means_of_where_seconds_went_are_those_of_the_file(index: Index, folder: Path) -> None:
    assert index.hops() == choose(RunFolder(folder), 10 << 20).hops
    assert [row["count"] for row in index.hops()["agent"]] == [16, 4]


def test_new_steps_come_in_and_removed_ones_go(index: Index, folder: Path) -> None:
    (folder / "rollouts" / "step-00000001.parquet").unlink()
    write(folder / "rollouts" / "step-00000005.parquet", list(step_rows(5)))
    index.update()
    assert steps(index.search({"outcome": "lost"})) == [5, 4, 3, 2]
    assert index.search({"q": "rooms"})["total"] == 4


def test_a_step_that_is_made_again_takes_the_place_of_the_first(index: Index, folder: Path) -> None:
    again = [rollout(4, 100, n, conversation='{"input": "another question"}') for n in range(9)]
    write(folder / "rollouts" / "step-00000004.parquet", again)
    index.update()
    assert index.search({"step": "4"})["total"] == 9
    assert index.search({"q": "another question"})["total"] == 9


def test_a_damaged_file_costs_that_file(index: Index, folder: Path) -> None:
    (folder / "rollouts" / "step-00000005.parquet").write_bytes(b"PAR1")
    write(folder / "rollouts" / "step-00000006.parquet", list(step_rows(6)))
    index.update()
    assert steps(index.search({"outcome": "lost"})) == [6, 4, 3, 2, 1]


def test_an_opened_rollout_has_its_conversation_and_tokens(index: Index, folder: Path) -> None:
    with_tokens(folder, 3, ["It ", "is"], [1.0, 2.0])
    (one, *_) = index.search({"step": "3", "sort": "oldest"})["rollouts"]
    assert "conversation" not in one
    told = index.rollout(one["id"])
    assert told is not None
    assert told["conversation"]["input"][0]["content"] == "What is 6 + 0?"
    assert told["sampled"] == {"texts": ["It ", "is"], "ratios": [1.0, 2.0]}
    (folder / "rollouts" / "step-00000003.parquet").unlink()
    assert index.rollout(one["id"]) is None


# --- over HTTP ---


type Get = Callable[..., tuple[int, Any]]


@pytest.fixture
def get(tmp_path: Path) -> Get:
    """Asks a server of the folder `run`, which need not be there yet."""
    ports: list[int] = []
    live = Live(tmp_path / "run", tmp_path / "index.sqlite")
    threading.Thread(target=serve, args=(live, "127.0.0.1", 0, ports.append), daemon=True).start()
    end = time.monotonic() + 20
    while not ports:
        assert time.monotonic() < end
        time.sleep(0.01)

    def ask(path: str, **query: str) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", ports[0], timeout=20)
        connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, json.loads(body) if "json" in answer.headers["Content-Type"] else body

    def asked(path: str, **query: str) -> tuple[int, Any]:
        if (tmp_path / "run").exists():
            live.look()
        return ask(path, **query)

    return asked


def test_the_server_has_the_page_its_overview_and_its_rollouts(get: Get, tmp_path: Path) -> None:
    made(tmp_path / "run")
    status, page = get("/")
    assert status == 200
    assert '<script type="application/json" id="data"></script>' in page, "it asks for its data"
    _, overview = get("/api/overview")
    assert (overview["run"], overview["agents"]) == ("run", ["adder", "booker"])
    _, found = get("/api/rollouts", q="rooms taken", outcome="", agent="", step="", group="", sort="newest", offset="0")
    assert found["total"] == 4
    _, one = get(f"/api/rollouts/{found['rollouts'][0]['id']}")
    assert one["conversation"]["output"][0]["name"] == "book_room"


def test_before_the_first_step_it_says_so(get: Get) -> None:
    assert get("/")[0] == 200
    assert get("/api/overview") == (400, "no step of the run has ended yet")


@pytest.mark.parametrize("path", ["/api/rollouts/999", "/api/rollouts/x", "/api/other", "/rewards.csv", "/../x"])
def test_there_is_nothing_else(get: Get, tmp_path: Path, path: str) -> None:
    made(tmp_path / "run")
    assert get(path)[0] == 404


def test_two_may_look_at_once(tmp_path: Path) -> None:
    made(tmp_path / "run")
    for number in range(10):
        live = Live(tmp_path / "run", tmp_path / f"{number}.sqlite")
        together = threading.Barrier(4)

        def look(live: Live = live, together: threading.Barrier = together) -> None:
            together.wait(20)
            live.look()

        with ThreadPoolExecutor(4) as threads:
            for looked in [threads.submit(look) for _ in range(4)]:
                looked.result(20)


def test_infinity_is_null(get: Get, tmp_path: Path) -> None:
    made(tmp_path / "run")
    row = rollout(9, 0, 0, reward=float("inf"), ratio=float("nan"))
    write(tmp_path / "run" / "rollouts" / "step-00000009.parquet", [row])
    _, found = get("/api/rollouts", step="9")
    assert found["rollouts"][0]["reward"] is None
    _, one = get(f"/api/rollouts/{found['rollouts'][0]['id']}")
    assert one["ratio"] is None


def test_a_server_ends_with_its_standard_input_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gymtrain_report", "serve", str(folder), "--port=0", "--until-stdin-ends"]
    environment = {"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline().startswith("http://127.0.0.1:")
        server.stdin.close()
        assert server.wait(20) == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_folder_that_goes_away_does_not_end_the_server(get: Get, tmp_path: Path) -> None:
    made(tmp_path / "run")
    assert get("/api/rollouts")[1]["total"] == 27
    shutil.rmtree(tmp_path / "run")
    assert get("/api/rollouts")[1]["total"] == 27
