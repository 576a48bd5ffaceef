"""Folders of runs as the trainer's recorder writes them, made up."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REWARDS = "step,reward,reward_std,groups,staleness,tokens,seconds,time,rollout_wait_s,weight_sync_s"
EVALUATIONS = "step,environment,version,tasks,reward,reward_low,reward_high,pass_1,pass_k,k,tokens,truncated,failed"
TOOL = {"type": "function_call", "name": "book_room", "arguments": '{"floor": 3}'}


def conversation(question: str, answer: str, *more: dict[str, Any]) -> str:
    """As the recorder has it."""
    output = [*more, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}]
    return json.dumps({"input": [{"role": "user", "content": question}], "tools": [], "output": output})


def call(at: float, seconds: float, queue: float, vllm: float) -> dict[str, Any]:
    """A model call of a rollout."""
    return {"at": at, "seconds": seconds, "queue": queue, "vllm": vllm, "prompt": 9, "tokens": 3}


def rollout(step: int, group: int, number: int, **fields: Any) -> dict[str, Any]:
    """A row with every column."""
    usual = {
        "step": step,
        "outcome": "trained",
        "reason": "",
        "error": "",
        "agent": "adder",
        "group": group,
        "rollout": number,
        "reward": float(number % 2),
        "advantage": 0.5 - number % 2,
        "ratio": 1.0,
        "versions": ["r:1:1"],
        "staleness": 0,
        "turns": 1,
        "tokens": 3,
        "forks": 0,
        "truncated": False,
        "constrained": False,
        "seconds": 1.5,
        "tries": 1,
        "slot_s": 0.25,
        "earlier_s": 0.0,
        "start_s": 0.25,
        "model_s": 1.0,
        "queue_s": 0.125,
        "vllm_s": 0.75,
        "tools_s": 0.0,
        "verify_s": 0.25,
        "calls": json.dumps([call(0.25, 1.0, 0.125, 0.75)]),
        "time": 1.0e9,
        "conversation": conversation(f"What is {group} + {number}?", f"It is {group + number}."),
    }
    return usual | fields


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A file of records, by its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def curves(folder: Path, steps: int) -> None:
    """rewards.csv and evaluations.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{step},{step / steps:.3f},0.1,8,0.5,1000,2.0,{step},0.5,0.25" for step in range(1, steps + 1)]
    (folder / "rewards.csv").write_text("\n".join([REWARDS, *rows]) + "\n")
    scores = [(step, step / steps) for step in range(0, steps + 1, 2)]
    rows = [
        f"{step},adder,r:1:{step},10,{score:.3f},{score - 0.1:.3f},{score + 0.1:.3f},0.5,0.6,2,9,0,0"
        for step, score in scores
    ]
    (folder / "evaluations.csv").write_text("\n".join([EVALUATIONS, *rows]) + "\n")


def step_rows(step: int) -> Iterator[dict[str, Any]]:
    """Two groups of two that were trained on, a dropped and a lost rollout."""
    for group in (2 * step, 2 * step + 1):
        yield from (rollout(step, group, number) for number in range(2))
    told = conversation("Book a room", "All rooms are taken", TOOL, {"type": "function_call_output", "output": "none"})
    hops = {
        "seconds": 8.0,
        "start_s": 1.0,
        "model_s": 4.0,
        "tools_s": 2.5,
        "verify_s": 0.5,
        "queue_s": 0.5,
        "vllm_s": 3.0,
    }
    calls = json.dumps([call(1.0, 2.0, 0.25, 1.5), call(5.5, 2.0, 0.25, 1.5)])
    dropped = {"outcome": "dropped", "reason": "equal_rewards", "agent": "booker"}
    yield rollout(step, 900 + step, 0, **dropped, **hops, calls=calls, conversation=told)
    lost = {"outcome": "lost", "reason": "timeout", "error": "not within 30 s", "reward": None, "rollout": None}
    lost |= {"slot_s": None, "model_s": None, "calls": "", "seconds": None}
    yield rollout(step, 950 + step, 0, **lost, conversation="")


def made(folder: Path, steps: int = 4, ending: str = "parquet") -> Path:
    """The folder of a run of that many steps, evaluated at the second one."""
    curves(folder, steps)
    for step in range(1, steps + 1):
        write(folder / "rollouts" / f"step-{step:08d}.{ending}", list(step_rows(step)))
    evaluated = [rollout(2, number, 0, outcome="evaluated", advantage=None, ratio=None) for number in range(3)]
    write(folder / "rollouts" / f"evaluation-00000002.{ending}", evaluated)
    return folder


def with_tokens(folder: Path, step: int, texts: Sequence[str], ratios: Sequence[float]) -> Path:
    """Adds the samples of the first rollout of a step, and a tokenizer whose tokens are these texts."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({text: number for number, text in enumerate(["?", *texts])}, unk_token="?"))
    tokenizer.decoder = Fuse()
    (folder / "records").mkdir()
    tokenizer.save(str(folder / "records" / "_tokenizer.json"))
    count = len(texts)
    row = {
        "step": step,
        "group": 2 * step,
        "rollout": 0,
        "token_ids": [0, *range(1, count + 1)],
        "mask": [0] + [1] * count,
        "log_probs": [0.0] * (count + 1),
        "ratios": [0.0, *ratios],
    }
    write(folder / "records" / f"step-{step:08d}.parquet", [row])
    return folder
