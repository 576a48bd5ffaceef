"""One of two training processes: `python -m tests.unit.trainer.trainer_rank FOLDER`, with torchrun's environment.

Rank 0 has the agent and what stands for vLLM, and leaves in FOLDER/parity what it measured last, in
FOLDER/progress.json its progress, and in FOLDER/sent.safetensors what vLLM has at the end. Ends with 75 where SIGTERM
ended it, with the exit code of the trainer's own errors, and with 1 otherwise.

| variable | what happens |
|---|---|
| TERM_AT_SYNC | SIGTERM to rank 0 at the beginning of the weight sync after so many |
| TERM_AFTER_GROUPS | SIGTERM to rank 0 once so many groups made steps, two groups each; no other is answered |
| TERM_AT_EVALUATION | SIGTERM to rank 0 in the evaluation of the weights of so many syncs, which takes long then |
| VLLM_LOSES | tensors with this in their names stay random in what stands for vLLM |
| MODEL_OF_OTHERS | the model's folder for ranks other than 0 |
"""

import asyncio
import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from gymtrain_trainer.context import Context, read_context
from gymtrain_trainer.errors import InterruptedBySignal, TrainerError
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


def _terminated_at_evaluation(syncs: int, vllm: VLLM) -> Behaviour:
    async def answer(row: dict[str, Any], number: int) -> web.Response:
        if row["number"] >= 1000 and len(vllm.labels) == syncs:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(600)
        return vllm.answer(row, number)

    return answer


def _terminate_after(syncs: int, vllm: VLLM) -> None:
    while len(vllm.labels) < syncs:
        time.sleep(0.1)
    time.sleep(3)  # from the last sync until rollouts are awaited
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Trains."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    made = read_context({"GYMTRAIN_RUN_CONFIG": str(folder / "run.json"), "GYMTRAIN_ROOT": str(folder)})
    if rank and (model := os.environ.get("MODEL_OF_OTHERS")):
        paths = dataclasses.replace(made.paths, model=Path(model))
        made = Context(made.run, paths, made.attempt, made.nodes, made.node_rank, made.port)
    stop = StopSignal()
    stop.install()
    vllm: VLLM | None = None
    if rank == 0:
        served, vllm = AgentThread(), VLLM(made.paths.model)
        served.agent.behaviour = vllm.answer
        if lost := os.environ.get("VLLM_LOSES"):
            vllm.lose(lost)
        vllm.serve()
        run = made.run.model_copy(update={"agents": {"adder": served.agent.url}})
        made = Context(run, made.paths, made.attempt, made.nodes, made.node_rank, made.port)
        if at := int(os.environ.get("TERM_AT_SYNC", 0)):
            vllm.on_pause = lambda syncs: os.kill(os.getpid(), signal.SIGTERM) if syncs == at else None
        if most := int(os.environ.get("TERM_AFTER_GROUPS", 0)):
            served.agent.behaviour = _answer_at_most(most, vllm)
            syncs = 1 + most // 2  # one before the first step
            threading.Thread(target=_terminate_after, args=(syncs, vllm), daemon=True).start()
        if syncs := int(os.environ.get("TERM_AT_EVALUATION", 0)):
            served.agent.behaviour = _terminated_at_evaluation(syncs, vllm)
    try:
        board = run_process(made, vllm, stop)
    except InterruptedBySignal:
        return 75
    except TrainerError as error:
        print(f"{type(error).__name__}: {error}")
        return error.exit_code
    if board is not None:
        (folder / "parity").write_text(str(board.snapshot().parity))
        (folder / "progress.json").write_text(board.snapshot().model_dump_json())
    if vllm is not None:
        vllm.keep(folder / "sent.safetensors")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of libraries have nothing to save
