"""Rows for three of NeMo Gym's environments, for a model with 135 M parameters. The same seed gives the same.

Servers, tools and verifiers are NeMo Gym's own; only the tasks are from here, in the form of its example rows. Each row
starts with worked examples as earlier turns: without them the model hardly ever does what is asked, and there is
nothing to reinforce.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

type Row = dict[str, Any]
type Item = dict[str, Any]

_INITIAL = range(10)  # of the counter
_ADDED = range(1, 10)

# Initial count and the numbers that are added, of three worked examples.
_WORKED = ((3, (1, 2)), (4, (6, 3)), (0, (8, 7)))

_TOPICS = Path(__file__).with_name("topics.txt")

_QUESTION = (
    "List two facts about {topic}. Write each on its own line: number, period, space, a title in double quotes, a "
    "colon, a space, then the fact."
)
_ANSWER = '1. "Size": the moon is a quarter as wide as the earth.\n2. "Light": it shines with the light of the sun.'
# The pattern of NeMo Gym's own rows of this kind (mixed_inline_numbered_heading).
_VERIFIER = {
    "type": "regex",
    "pattern_id": "mixed_inline_numbered_heading",
    "verify_regex": [r'^\d+\.\s*".+":\s*.+'],
    "verify_min_matches": 2,
}


def sums(seed: int, size: int, pairs: Sequence[tuple[int, int]]) -> list[Row]:
    """Tasks of reasoning_gym's chain_sum: add or subtract these digits, in either order."""
    draw = random.Random(seed)  # noqa: S311 - draws tasks, no secret
    asked = (draw.choice(_ordered(pair)) for pair in draw.choices(pairs, k=size))
    return [_sum(one, other, draw.choice("+-")) for one, other in asked]


def all_sums(pairs: Sequence[tuple[int, int]]) -> list[Row]:
    """Each task with these digits once."""
    both = sorted({order for pair in pairs for order in _ordered(pair)})
    return [_sum(one, other, sign) for one, other in both for sign in "+-"]


def split_pairs(held_out: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of digits to train on, and as many as are held out: there are 200 sums, so another seed holds out few."""
    pairs = [(one, other) for one in range(10) for other in range(one, 10)]
    random.Random(0).shuffle(pairs)  # noqa: S311 - draws tasks, no secret
    return pairs[held_out:], pairs[:held_out]


def counter(seed: int, size: int) -> list[Row]:
    """Tasks of example_session_state_mgmt: add two numbers to a counter, each by a call of a tool, then read it."""
    draw = random.Random(seed)  # noqa: S311 - draws tasks, no secret
    rows: list[Row] = []
    worked = [item for number, (initial, added) in enumerate(_WORKED) for item in _conversation(number, initial, added)]
    for _ in range(size):
        initial, added = draw.choice(_INITIAL), [draw.choice(_ADDED) for _ in range(2)]
        rows.append(
            {
                "responses_create_params": {"input": [*worked, _asked(added)], "tools": [_INCREMENT, _GET]},
                "initial_count": initial,
                "expected_count": initial + sum(added),
            }
        )
    return rows


def formatting(topics: Sequence[str]) -> list[Row]:
    """Tasks of format_verification: two lines about each topic, in a given form."""
    return [
        {
            "responses_create_params": {
                "input": [
                    _message("user", _QUESTION.format(topic="the moon")),
                    _message("assistant", _ANSWER),
                    _message("user", _QUESTION.format(topic=topic)),
                ]
            },
            "verifier": _VERIFIER,
        }
        for topic in topics
    ]


def split_topics(held_out: int) -> tuple[list[str], list[str]]:
    """Topics to train on, and as many as are held out; none is in both."""
    topics = _TOPICS.read_text().split()
    random.Random(0).shuffle(topics)  # noqa: S311 - draws tasks, no secret
    return topics[held_out:], topics[:held_out]


def files(environment: str, seed: int, held_out_seed: int, size: int, held_out: int) -> dict[str, str]:
    """JSON lines of an environment's train and validation; no task is in both.

    Args:
        environment: of ENVIRONMENTS.
        seed: of the rows to train on, or of their order.
        held_out_seed: of the others.
        size: rows to train on, at the most.
        held_out: rows to evaluate on.
    """
    train, validation = ENVIRONMENTS[environment](seed, held_out_seed, size, held_out)
    return {"train": _lines(train), "validation": _lines(validation)}


def _sums(seed: int, held_out_seed: int, size: int, held_out: int) -> tuple[list[Row], list[Row]]:
    # Nearly all pairs make four sums. Which are held out doesn't depend on a seed, either.
    train, validation = split_pairs(-(-held_out // 3))
    rows = all_sums(validation)
    random.Random(held_out_seed).shuffle(rows)  # noqa: S311 - draws tasks, no secret
    return sums(seed, size, train), rows[:held_out]


def _counters(seed: int, held_out_seed: int, size: int, held_out: int) -> tuple[list[Row], list[Row]]:
    validation = counter(held_out_seed, held_out)
    seen = {_task(row) for row in validation}
    return [row for row in counter(seed, size) if _task(row) not in seen], validation


def _formats(seed: int, held_out_seed: int, size: int, held_out: int) -> tuple[list[Row], list[Row]]:
    # Which topics are held out doesn't depend on a seed: there are too few of them.
    train, validation = split_topics(held_out)
    random.Random(seed).shuffle(train)  # noqa: S311 - draws tasks, no secret
    return formatting(train[:size]), formatting(validation)


ENVIRONMENTS: Mapping[str, Callable[[int, int, int, int], tuple[list[Row], list[Row]]]] = {
    "sums": _sums,
    "format": _formats,
    "counter": _counters,
}
"""Seeds, sizes → rows to train on, rows held out."""


def _ordered(pair: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    return pair, (pair[1], pair[0])


def _sum(one: int, other: int, sign: str) -> Row:
    question = _SUM.format(f"{one} {sign} {other}")
    answer = str(one + other if sign == "+" else one - other)
    asked = [*_SUMS_WORKED, _message("user", question)]
    entry = {"question": question, "answer": answer, "metadata": {"source_dataset": "chain_sum"}}
    return {"responses_create_params": {"input": asked}, **entry}


def _task(row: Row) -> tuple[int, str]:
    """What tells a counter's row from others: only the last message differs."""
    return row["initial_count"], row["responses_create_params"]["input"][-1]["content"]


def _conversation(number: int, initial: int, added: Sequence[int]) -> list[Item]:
    items = [_asked(added)]
    for place, one in enumerate(added):
        items += _call(f"call_{number}_{place}", "increment_counter", {"count": one}, {"success": True})
    count = initial + sum(added)
    items += _call(f"call_{number}_{len(added)}", "get_counter_value", {}, {"count": count})
    return [*items, _message("assistant", f"The count is {count}.")]


def _asked(added: Sequence[int]) -> Item:
    return _message("user", " then ".join([*(f"add {one}" for one in added), "get the count"]))


def _message(role: str, content: str) -> Item:
    return {"role": role, "content": content}


def _call(identity: str, name: str, arguments: dict[str, int], result: dict[str, Any]) -> list[Item]:
    return [
        {"type": "function_call", "call_id": identity, "name": name, "arguments": json.dumps(arguments)},
        # As the environment's server writes it.
        {"type": "function_call_output", "call_id": identity, "output": json.dumps(result, separators=(",", ":"))},
    ]


_SUM = "State the final answer to the following arithmetic problem: {} ="
_SUMS_WORKED = [
    _message("user", _SUM.format("3 + 5")),
    _message("assistant", "8"),
    _message("user", _SUM.format("9 - 2")),
    _message("assistant", "7"),
]


def _tool(name: str, properties: dict[str, Any]) -> Item:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    # Not strict, unlike NeMo Gym's rows: vLLM would have to hold the model to the schema, and that is to be learned.
    return {"type": "function", "name": name, "description": "", "parameters": parameters, "strict": False}


_INCREMENT = _tool("increment_counter", {"count": {"type": "integer", "description": ""}})
_GET = _tool("get_counter_value", {})


def _lines(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
