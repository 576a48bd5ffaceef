"""The environments' own example rows, made into conversations of several turns for a model without skill."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.exactness.gym.grammar import grammar

ENVIRONMENTS = ("workplace_assistant", "example_multi_step")
_ANSWER_TOKENS = 768
_MOST_CALLS = 2  # of one turn, where the row lets the model call tools in parallel


@dataclass(frozen=True)
class Rows:
    """Example rows of one environment."""

    rows: list[dict[str, Any]]

    def texts(self) -> list[str]:
        """All that a prompt of them holds, for a tokenizer to learn from."""
        parameters = [row["responses_create_params"] for row in self.rows]
        return [message["content"] for one in parameters for message in one["input"]] + [
            json.dumps(tool) for one in parameters for tool in one["tools"]
        ]

    def conversation(self, number: int, *, thinks: bool) -> dict[str, Any]:
        """Body of POST /run. The rows take turns; in every other round they allow parallel calls.

        NeMo Gym's model server passes `metadata.extra_body` on to vLLM: there the grammar goes.
        """
        row = copy.deepcopy(self.rows[number % len(self.rows)])
        parallel = number // len(self.rows) % 2 == 1
        parameters = row["responses_create_params"]
        constraint = grammar(parameters["tools"], thinks=thinks, most_calls=_MOST_CALLS if parallel else 1)
        parameters |= {
            "temperature": 1.0,
            "max_output_tokens": _ANSWER_TOKENS,
            "parallel_tool_calls": parallel,
            "metadata": {"extra_body": json.dumps({"structured_outputs": {"grammar": constraint}})},
        }
        return row


def read(gym_root: Path, environment: str) -> Rows:
    """The rows that come with an environment."""
    file = gym_root / "resources_servers" / environment / "data" / "example.jsonl"
    return Rows([json.loads(line) for line in file.read_text().splitlines() if line.strip()])
