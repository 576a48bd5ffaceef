"""TRL's own trainer, with a rollout worker that asks vLLM directly: what the chain is measured against.

    python3 -m benchmarks.gpu.chain.plain VLLM_URL MODEL STEPS BATCH SEED SLOW IN_FLIGHT QUEUE STALENESS

TRL's own worker refuses this model ("Unrecognized chat template"), so this one does what it does, and no more: groups
in flight up to a number of rollouts, samples of a finished group into a queue, the version at the group's start on
each. Everything else is TRL's: loss, batches, its NCCL transfer, the drop of stale samples. The attention is ours, as
its own kernel comes from the hub. Prints a line of JSON a step, as our trainer does, and one at the end.
"""

import asyncio
import json
import os
import queue
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import pyarrow
from aiohttp import ClientSession, ClientTimeout, TCPConnector
from datasets import Dataset
from transformers import AttentionInterface, TrainerCallback
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from benchmarks.gpu.chain.task import ANSWER_TOKENS, GENERATIONS, Tails, rows, score, slow_shares
from dev.gpu.older_versions import allow_older_torch
from gymtrain_trainer.trl.attention import TREE_ATTENTION, TreeAttention

_WARM_UP = 10  # steps left out of means


class PlainWorker:
    """TRL's RolloutWorkerProtocol over vLLM's chat route."""

    def __init__(self, url: str, model: str, in_flight: int, waiting: int, tails: Tails, seed: int) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(maxsize=waiting)
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.rows = rows()
        self.order = np.random.default_rng(seed).permutation(len(self.rows)).tolist()
        self._url, self._model, self._tails = url, model, tails
        self._groups = max(1, in_flight // GENERATIONS)
        self._version = 0
        self._next = 0
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends."""
        self._stopping.set()

    def update_model_version(self, model_version: int) -> None:
        """The trainer's."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises what ended the thread."""
        if self._error is not None:
            raise RuntimeError("the worker died") from self._error

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error = error

    async def _run(self) -> None:
        connector = TCPConnector(limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=600)) as session:
            await asyncio.gather(*(self._loop(session) for _ in range(self._groups)))

    async def _loop(self, session: ClientSession) -> None:
        while not self._stopping.is_set():
            group, self._next = self._next, self._next + 1
            number, version = self.order[group % len(self.order)], self._version
            answers = await asyncio.gather(*(self._rollout(session, number) for _ in range(GENERATIONS)))
            rewards = np.array([reward for *_, reward in answers])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
            for (prompt, tokens, log_probs, reward), advantage in zip(answers, advantages, strict=True):
                sample = RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=np.array(prompt + tokens, np.int64),
                    completion_mask=np.array([0] * len(prompt) + [1] * len(tokens), np.int64),
                    old_log_probs=np.array([0.0] * len(prompt) + log_probs, np.float32),
                    advantage=float(advantage),
                    model_version=version,
                    group_id=group,
                    metrics={"reward": reward, "reward_std": float(rewards.std())},
                )
                while not self._stopping.is_set():
                    try:
                        self.rollout_buffer.put_nowait(sample)
                        break
                    except queue.Full:
                        await asyncio.sleep(0.01)

    async def _rollout(self, session: ClientSession, number: int) -> tuple[list[int], list[int], list[float], float]:
        row = self.rows[number]
        body = {
            "model": self._model,
            "messages": row["prompt"],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 1.0,
            "logprobs": True,
            "return_token_ids": True,
        }
        async with session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            answer = await response.json()
        choice = answer["choices"][0]
        await asyncio.sleep(self._tails.delay(number))
        log_probs = [token["logprob"] for token in choice["logprobs"]["content"]]
        reward = score(choice["message"]["content"] or "", row["entry"])
        return answer["prompt_token_ids"], choice["token_ids"], log_probs, reward


class StepLines(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
    """Prints each step, so that the log of a run that doesn't come to its end has them too."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Logs come once a step, and once more at the end, without a reward."""
        if logs is None or logs.get("reward") is None:
            return
        known = {"staleness": "sample/staleness_mean", "kl": "kl", "ratio": "ratio"}
        numbers = {name: float(logs[key]) for name, key in known.items() if logs.get(key) is not None}
        line = {"event": "step", "step": state.global_step, "reward": float(logs["reward"]), **numbers}
        print(json.dumps(line), flush=True)


def main() -> int:
    """Trains, and prints what was measured."""
    url, model, steps, batch, seed, slow, in_flight, waiting, staleness = sys.argv[1:10]
    kind: Any = slow
    allow_older_torch()
    tails = Tails(kind)
    worker = PlainWorker(url, model, int(in_flight), int(waiting), tails, int(seed))
    prompts = pyarrow.Table.from_pylist([{"prompt": row["prompt"]} for row in worker.rows])
    trainer = AsyncGRPOTrainer(
        model=model,
        args=AsyncGRPOConfig(
            output_dir=str(Path(os.environ["OUT"]) / "plain"),
            report_to="none",
            bf16=True,
            gradient_checkpointing=False,
            learning_rate=1e-5,
            max_steps=int(steps),
            per_device_train_batch_size=int(batch),
            num_generations=GENERATIONS,
            max_completion_length=ANSWER_TOKENS,
            max_staleness=int(staleness),
            token_budget=0,
            seed=int(seed),
            vllm_server_base_url=url,
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
        ),
        train_dataset=Dataset(prompts, fingerprint="sums"),
        rollout_worker=worker,
        callbacks=[StepLines()],
    )
    AttentionInterface.register(TREE_ATTENTION, TreeAttention())
    began = time.monotonic()
    trainer.train()
    logs = [row for row in trainer.state.log_history if "reward" in row]
    steady = logs[_WARM_UP:]
    trained = [worker.order[group % len(worker.order)] for group in trainer._trained_groups]
    seconds = statistics.fmean(row["perf/step_s"] for row in steady)
    wait = statistics.fmean(row["perf/rollout_wait_s"] for row in steady)
    dropped = sum(row.get("sample/dropped_stale_total") or 0 for row in logs)
    found = {
        "side": "trl",
        "rollouts_per_second": round(int(batch) / seconds, 1),
        "step_seconds": round(seconds, 4),
        "median_step_seconds": round(statistics.median(row["perf/step_s"] for row in steady), 4),
        "wait_share": round(wait / seconds, 4),
        "dropped_share": round(dropped / (dropped + int(batch) * len(logs)), 4),
        "staleness": round(statistics.fmean(row["sample/staleness_mean"] for row in steady), 3),
        "weight_sync_seconds": round(statistics.median(row["perf/weight_sync_s"] for row in steady), 4),
        "reward_first": round(statistics.fmean(row["reward"] for row in logs[:10]), 4),
        "reward_last": round(statistics.fmean(row["reward"] for row in logs[-10:]), 4),
        **slow_shares(tails, trained, worker.order[: len(trained)]),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
