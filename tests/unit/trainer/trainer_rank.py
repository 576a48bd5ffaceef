"""One of two training processes: `python -m tests.unit.trainer.trainer_rank FOLDER`, with torchrun's environment.

Rank 0 has the agent and what stands for vLLM. Ends with 75 where SIGTERM ended it.
"""

import os
import signal
import sys
from pathlib import Path

from gymtrain_trainer.context import Context, read_context
from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.stopping import StopSignal
from tests.unit.trainer.test_trainer_worker import AgentThread
from tests.unit.trainer.trainer_vllm import VLLM, run_process


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
        if "TERM_AT_SYNC" in os.environ:
            at = int(os.environ["TERM_AT_SYNC"])
            vllm.on_pause = lambda syncs: os.kill(os.getpid(), signal.SIGTERM) if syncs == at else None
    try:
        run_process(made, vllm, stop)
    except InterruptedBySignal:
        return 75
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of libraries have nothing to save
