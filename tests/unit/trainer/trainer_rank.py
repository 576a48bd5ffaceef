"""One of two training processes: `python -m tests.unit.trainer.trainer_rank FOLDER`, with torchrun's environment.

Rank 0 has the agent and what stands for vLLM. Ends with 75 where SIGTERM ended it, which rank 0 sends to itself:

| variable | when |
|---|---|
| TERM_AT_SYNC | at the beginning of the weight sync after so many |
| TERM_AFTER_GROUPS | those of so many rows were answered and no other is, once the steps that they make are done |
"""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from gymtrain_trainer.context import Context, read_context
from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.stopping import StopSignal
from tests.unit.trainer.trainer_agent import AgentThread, Behaviour
from tests.unit.trainer.trainer_vllm import VLLM, run_process


def _answer_at_most(most: int, vllm: VLLM) -> Behaviour:
    answered: dict[str, None] = {}

    async def answer(row: dict[str, Any], number: int) -> web.Response:
        if len(answered) < most:
            answered[str(row["responses_create_params"]["input"])] = None
        if str(row["responses_create_params"]["input"]) not in answered:
            await asyncio.sleep(600)
        return vllm.answer(row, number)

    return answer


def _terminate_when_idle(vllm: VLLM) -> None:
    syncs = -1
    while len(vllm.labels) < 2 or len(vllm.labels) != syncs:
        syncs = len(vllm.labels)
        time.sleep(3)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Trains."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    made = read_context({"GYMTRAIN_RUN_CONFIG": str(folder / "run.json"), "GYMTRAIN_ROOT": str(folder)})
    stop = StopSignal()
    stop.install()
    vllm: VLLM | None = None
    if rank == 0:
        served, vllm = AgentThread(), VLLM(made.paths.model)
        served.agent.behaviour = vllm.answer
        run = made.run.model_copy(update={"agents": {"adder": served.agent.url}})
        made = Context(run, made.paths, made.attempt, made.nodes, made.node_rank, made.port)
        if at := int(os.environ.get("TERM_AT_SYNC", 0)):
            vllm.on_pause = lambda syncs: os.kill(os.getpid(), signal.SIGTERM) if syncs == at else None
        if most := int(os.environ.get("TERM_AFTER_GROUPS", 0)):
            served.agent.behaviour = _answer_at_most(most, vllm)
            threading.Thread(target=_terminate_when_idle, args=(vllm,), daemon=True).start()
    try:
        run_process(made, vllm, stop)
    except InterruptedBySignal:
        return 75
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of libraries have nothing to save
