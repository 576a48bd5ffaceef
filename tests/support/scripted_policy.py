"""A policy that plays a script: for each task of a dataset it applies the right patch, or none, or waits, and submits.

    python -m tests.support.scripted_policy examples/swe/tasks.jsonl --play gold --port 8000

It speaks OpenAI's chat completions with token ids as vLLM does, and calls the tool of mini-swe-agent 2. Which step is
next follows from the conversation, so it keeps no state and serves any number of them at once.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tests.support.fake_policy import FakePolicy, Message

type Play = Literal["gold", "empty", "slow"]

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def commands(row: dict[str, Any], play: Play) -> list[str]:
    """What the policy does, one command a turn."""
    if play == "empty":
        return ["git status --short", SUBMIT]
    if play == "slow":
        return ["sleep 600", SUBMIT]
    return [
        f"git apply - <<'EOF_PATCH'\n{row['patch']}\nEOF_PATCH",
        "git diff > patch.txt",
        f"{SUBMIT} && cat patch.txt",
    ]


def bash(command: str, step: int = 0) -> Message:
    """A message that calls the agent's tool."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {
        "content": f"Step {step + 1}.",
        "tool_calls": [{"id": f"call_{step}", "type": "function", "function": function}],
    }


class Script:
    """Answers a conversation with its next command."""

    def __init__(self, rows: Sequence[dict[str, Any]], play: Play) -> None:
        """`rows`: the tasks that it knows, told apart by their problem statements."""
        self._scripts = {row["problem_statement"].strip(): commands(row, play) for row in rows}

    def __call__(self, messages: list[Message]) -> Message:
        """The next message of the assistant."""
        asked = next(text for message in messages if message["role"] == "user" and (text := _text(message)))
        script = next((script for statement, script in self._scripts.items() if statement in asked), None)
        if script is None:
            return {"content": "I know no such task."}
        step = sum(message["role"] == "assistant" for message in messages)
        command = script[min(step, len(script) - 1)]
        return bash(command, step)


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content)


async def _serve(rows: list[dict[str, Any]], play: Play, host: str, port: int) -> None:
    policy = FakePolicy(Script(rows, play))
    await policy.start(host, port)
    print(f"plays {play} at {policy.base_url}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.scripted_policy")
    parser.add_argument("rows", type=Path, help="JSONL file with the tasks")
    parser.add_argument("--play", choices=["gold", "empty", "slow"], default="gold")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    asyncio.run(_serve(rows, options.play, options.host, options.port))


if __name__ == "__main__":
    main()
