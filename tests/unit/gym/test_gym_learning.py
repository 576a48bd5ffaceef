"""NeMo Gym itself takes the rows of benchmarks.learning, and its servers reward what the tasks ask for."""

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.learning import tasks
from benchmarks.learning.runs import ENVIRONMENTS, Kind, Variant, objects
from gymtrain_gym import preflight
from gymtrain_gym.datasets.preparation import Folders
from tests.unit.gym.conftest import run_of

pytestmark = pytest.mark.gym


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_rows_pass_preflight(environment: str, tmp_path: Path) -> None:
    *maps, manifest = objects(Variant(environment, Kind.TRAINED, 1))
    folders = Folders(sources=tmp_path / "sources", data=tmp_path / "data")
    for folder, made in zip(("0", "validation-0"), maps, strict=True):
        file = folders.sources / folder / "rows.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(made["data"]["rows.jsonl"])
    verdict = preflight.check(run_of(manifest["spec"]), folders)
    assert (verdict.findings, verdict.warnings) == ([], [])
    assert verdict.data.train[0].rows == len(maps[0]["data"]["rows.jsonl"].splitlines())


def test_sums_are_those_of_reasoning_gym() -> None:
    import reasoning_gym

    digits = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    upstream = reasoning_gym.create_dataset("chain_sum", size=3000, seed=1, **digits)
    answers = {entry["question"]: entry["answer"] for entry in upstream}
    made = tasks.all_sums([*itertools.chain(*tasks.split_pairs(20))])
    assert {row["question"]: row["answer"] for row in made} == answers
    score = reasoning_gym.get_score_answer_fn("chain_sum")
    assert {score(answer=row["answer"], entry=row) for row in made} == {1.0}


@pytest.mark.parametrize(("missing", "reward"), [(0, 1.0), (1, 0.0)])
def test_the_counters_server_rewards_the_calls_that_a_row_asks_for(missing: int, reward: float) -> None:
    from nemo_gym.openai_utils import NeMoGymResponse
    from resources_servers.example_session_state_mgmt import app

    row = tasks.counter(seed=1, size=1)[0]
    added = [int(word) for word in row["responses_create_params"]["input"][-1]["content"].split() if word.isdigit()]
    answer = {"id": "one", "created_at": 0, "model": "policy", "object": "response", "output": [], "tools": []}
    response = NeMoGymResponse.model_validate(answer | {"parallel_tool_calls": False, "tool_choice": "auto"})
    asked = app.StatefulCounterVerifyRequest.model_validate(row | {"response": response})
    server: Any = SimpleNamespace(session_id_to_counter={})
    request: Any = SimpleNamespace(session={app.SESSION_ID_KEY: "rollout"})
    kind = app.StatefulCounterResourcesServer

    async def play() -> float:
        await kind.seed_session(server, request, app.StatefulCounterSeedSessionRequest.model_validate(row))
        for one in added[missing:]:
            await kind.increment_counter(server, request, app.IncrementCounterRequest(count=one))
        reply = await kind.verify(server, request, asked)
        return float(reply.reward)

    assert asyncio.run(play()) == reward
