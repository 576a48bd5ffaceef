"""README.md of the final model: where it comes from, on what it was trained, and how that went.

Its head is YAML as the Hugging Face hub reads it; the rest is for people. Nothing of it is worth a model: what can't be
read is left out.
"""

import csv
import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from gymtrain_api.errors import ApiError
from gymtrain_api.sources import HuggingFace, parse_model_source
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.context import Context
from gymtrain_trainer.monitoring.record import REWARDS_FILE
from gymtrain_trainer.monitoring.run_facts import run_facts

CARD = "README.md"
EVALUATIONS_FILE = "evaluations.csv"

_TAGS = ["gymtrain", "grpo", "nemo-gym", "reinforcement-learning", "trl"]
_ROWS = 20  # of a table
_HUB_DATASET = re.compile(r"^hf://([\w.-]+/[\w.-]+?)(?:@[\w.-]+)?/")


def model_card(context: Context) -> str:
    """The card of the run's model, by what is in its folder."""
    spec, folder = context.run.spec, context.run_folder
    facts = run_facts(context)
    head = yaml.safe_dump(_head(spec, context.paths.model), sort_keys=False)
    parts = [
        f"---\n{head}---",
        f"# {context.run.name}",
        f"{_what(spec)}, trained by reinforcement learning with [TRL](https://huggingface.co/docs/trl) in environments "
        "of [NeMo Gym](https://github.com/NVIDIA-NeMo/Gym).",
        _use(spec),
        _section("Data", _data(spec)),
        _section("Environments", [f"- `{path}`" for path in spec.gym.config_paths]),
        _section("Reward", _curve(folder / REWARDS_FILE)),
        _section("Evaluation", _csv_table(folder / EVALUATIONS_FILE)),
        _section("Run", [*_fence({key: facts[key] for key in ("run", "namespace", "uid", "attempt", "versions")})]),
        _section("Spec", [*_fence(facts["spec"])]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(spec: GymTrainingRunSpec, source: Path) -> dict[str, Any]:
    head: dict[str, Any] = {
        "library_name": "peft" if spec.model.lora is not None else "transformers",
        "pipeline_tag": "text-generation",
        "tags": _TAGS,
    }
    if (base := _base(spec)) is not None:
        head["base_model"] = base
    if license_ := _license(source / CARD):
        head["license"] = license_
    sources = (str(data.source or "") for data in spec.data.train)
    if datasets := sorted({match[1] for text in sources if (match := _HUB_DATASET.match(text))}):
        head["datasets"] = datasets
    return head


def _base(spec: GymTrainingRunSpec) -> str | None:
    try:
        source = parse_model_source(spec.model.source)
    except ApiError:
        return None
    return source.repo_id if isinstance(source, HuggingFace) else None


def _license(card: Path) -> str | None:
    """Of the model that training began with, as its card says."""
    try:
        _, head, _ = card.read_text().split("---", 2)
        found = yaml.safe_load(head).get("license")
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return None
    return found if isinstance(found, str) else None


def _what(spec: GymTrainingRunSpec) -> str:
    base = _base(spec)
    name = f"[{base}](https://huggingface.co/{base})" if base else f"`{spec.model.source}`"
    return f"An adapter for {name}" if spec.model.lora is not None else f"Weights of {name}"


def _use(spec: GymTrainingRunSpec) -> str:
    if spec.model.lora is None:
        return "```sh\nvllm serve .\n```"
    return f"```sh\nvllm serve {_base(spec) or 'MODEL'} --enable-lora --lora-modules trained=.\n```"


def _data(spec: GymTrainingRunSpec) -> list[str]:
    rows = []
    for data in spec.data.train:
        task, listed = data.reasoning_gym, data.from_gym
        what = f"reasoning_gym {task.task} ({task.size} rows, seed {task.seed})" if task else data.source or ""
        if listed is not None:
            what = f"what the environments list as {' and '.join(listed.types or ['train'])}"
        rows.append((what, str(data.weight), data.agent or ""))
    return _table(("source", "weight", "agent"), rows)


def _curve(file: Path) -> list[str]:
    """The steps in at most 20 rows, each of as many steps."""
    steps = [row for row in _rows(file) if row.get("step", "").isdigit()]
    size = -(-len(steps) // _ROWS) or 1
    lines = []
    for part in itertools.batched(steps, size, strict=False):
        mean = [statistics.fmean(float(row[name]) for row in part) for name in ("reward", "reward_std", "staleness")]
        first, last = part[0]["step"], part[-1]["step"]
        lines.append((first if first == last else f"{first} to {last}", *(f"{value:.4g}" for value in mean)))
    return _table(("steps", "reward", "deviation within groups", "staleness"), lines)


def _csv_table(file: Path) -> list[str]:
    rows = _rows(file)[-_ROWS:]
    return _table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]) if rows else []


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="") as opened:
            return list(csv.DictReader(opened))
    except (OSError, csv.Error, UnicodeDecodeError):
        return []


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}", *lines] if lines else []


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _fence(value: Any) -> list[str]:
    return ["```yaml", yaml.safe_dump(value, sort_keys=False).rstrip(), "```"]


def _section(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines) if lines else ""
