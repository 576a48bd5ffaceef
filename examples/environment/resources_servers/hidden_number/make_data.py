"""Writes data/*.jsonl beside this file: `python make_data.py`. The same rows each time."""

import json
import random
from pathlib import Path

SIZES = {"example": 5, "train": 128, "validation": 32}
HIGHEST = 100
PROMPT = (
    f"I think of a whole number from 1 to {HIGHEST}. Find it with the tool guess, in as few calls as you can, "
    "then say it."
)
TOOL = {
    "type": "function",
    "name": "guess",
    "description": "Says whether the hidden number is higher, lower, or right.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "The guess."}},
        "required": ["number"],
        "additionalProperties": False,
    },
}


def row(number: int) -> dict[str, object]:
    """A task: what the model gets (responses_create_params), and what only the environment sees."""
    request = {"input": [{"role": "user", "content": PROMPT}], "tools": [TOOL]}
    return {"responses_create_params": request, "number": number}


def main() -> None:
    """Writes the files."""
    folder = Path(__file__).parent / "data"
    for seed, (name, size) in enumerate(SIZES.items()):
        chance = random.Random(seed)  # noqa: S311 - the same rows each time
        rows = [json.dumps(row(chance.randint(1, HIGHEST))) for _ in range(size)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
