"""How far vLLM's log-probabilities in bfloat16 are from those of the same weights in float32, answer by answer.

    export PYTHONPATH=.
    python3 -m benchmarks.gpu.rounding --model FOLDER

vLLM answers the quickstart's sums, all 100 of them; transformers computes the same tokens again, in float32 on the same
GPU. No weights change, so all that is found is rounding: what a check of samples has to bear
(gymtrain_trainer/monitoring/sample_check.py). Prints a line for each length of answers, and the worst ones.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_BATCH = 128
_QUICKSTART = Path("examples/quickstart.yaml")
_SUM = "State the final answer to the following arithmetic problem: {} + {} ="


@dataclass(frozen=True)
class Answer:
    """One answer: token ids, and vLLM's log-probability of each one of the output."""

    prompt: list[int]
    output: list[int]
    log_probs: list[float]


def main() -> int:
    """Answers, computes again, tells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=80, help="to each sum (%(default)s)")
    options = parser.parse_args()
    answers = list(_answers(options.model, options.answers))
    differences = list(_differences(options.model, answers))
    tokens = sorted(one for answer in differences for one in answer)
    print(f"{len(tokens)} tokens: mean {statistics.fmean(tokens):.4f}, {_quantiles(tokens)}")
    means = defaultdict(list)
    for answer in differences:
        means[len(answer)].append(statistics.fmean(answer))
    for length, found in sorted(means.items()):
        print(
            f"{len(found)} answers of {length} tokens: mean {statistics.fmean(found):.4f}, {_quantiles(sorted(found))}"
        )
    for answer in sorted(differences, key=statistics.fmean)[-5:]:
        print([round(one, 3) for one in answer])
    return 0


def _answers(model: Path, each: int) -> Iterator[Answer]:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(model),
        dtype="bfloat16",
        enforce_eager=True,
        gpu_memory_utilization=0.3,
        max_model_len=512,
        logprobs_mode="processed_logprobs",
    )
    tokenizer = engine.get_tokenizer()
    spec = yaml.safe_load(_QUICKSTART.read_text())["spec"]
    shown = spec["data"]["train"][0]["reasoningGym"]["messages"]
    questions = [_SUM.format(one, other) for one in range(10) for other in range(10)]
    conversations = [[*shown, {"role": "user", "content": question}] for question in questions]
    texts = [tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False) for one in conversations]
    asked = [{"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)} for text in texts]
    sampling = SamplingParams(
        n=each, temperature=1.0, max_tokens=spec["trainer"]["config"]["max_completion_length"], logprobs=0
    )
    for request in engine.generate(asked, sampling, use_tqdm=False):
        for one in request.outputs:
            output = list(one.token_ids)
            scores = [place[token].logprob for place, token in zip(one.logprobs, output, strict=True)]
            yield Answer(list(request.prompt_token_ids), output, scores)


def _differences(model: Path, answers: Sequence[Answer]) -> Iterator[list[float]]:
    import torch
    from transformers import AutoModelForCausalLM

    half: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    full = half.float().cuda().eval()
    ordered = sorted(answers, key=lambda one: len(one.prompt) + len(one.output))
    for start in range(0, len(ordered), _BATCH):
        part = ordered[start : start + _BATCH]
        ids = torch.zeros(len(part), max(len(one.prompt) + len(one.output) for one in part), dtype=torch.long)
        for number, one in enumerate(part):
            ids[number, : len(one.prompt) + len(one.output)] = torch.tensor(one.prompt + one.output)
        with torch.no_grad():  # what pads a row comes after its tokens, which don't see it
            scores = full(ids.cuda()).logits.float().log_softmax(-1).cpu()
        for number, one in enumerate(part):
            at = range(len(one.prompt) - 1, len(one.prompt) - 1 + len(one.output))
            ours = [float(scores[number, place, token]) for place, token in zip(at, one.output, strict=True)]
            yield [abs(mine - theirs) for mine, theirs in zip(ours, one.log_probs, strict=True)]


def _quantiles(ordered: Sequence[float]) -> str:
    at = {share: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.99, 0.999)}
    return ", ".join(
        [*(f"{share:.1%} up to {value:.3f}" for share, value in at.items()), f"all up to {ordered[-1]:.3f}"]
    )


if __name__ == "__main__":
    sys.exit(main())
