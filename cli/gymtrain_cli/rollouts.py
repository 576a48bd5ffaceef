"""A recorded rollout for the terminal."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.rule import Rule
from rich.text import Text

OUTCOMES = ("trained", "dropped", "lost", "zeroed", "evaluated")

_COLOURS = {"user": "green", "assistant": "blue", "tool": "yellow", "system": "magenta"}
_FACTS = ("reward", "advantage", "ratio", "staleness", "turns", "tokens", "seconds", "reason")

_HOPS = (
    ("slot_s", "waiting for a slot"),
    ("earlier_s", "earlier tries"),
    ("start_s", "start"),
    ("model_s", "model calls"),
    ("queue_s", "of these waiting for vLLM"),
    ("vllm_s", "in vLLM"),
    ("tools_s", "tools"),
    ("verify_s", "verification"),
)


def shown(rollout: Mapping[str, Any]) -> Group:
    """Where it belongs and what came of it, where its seconds went, then what was said."""
    facts = [f"{name} {_short(rollout[name])}" for name in _FACTS if rollout.get(name) not in (None, "")]
    title = f"step {rollout['step']} · {rollout['outcome']} · {rollout['agent']} · group {rollout['group']}"
    hops = [Text(text, style="dim") for text in _hops(rollout)]
    said = [Text(f"{role}: ", style=_COLOURS.get(role, "")) + Text(text) for role, text in _messages(rollout)]
    error = [Text(str(rollout["error"]), style="red")] if rollout.get("error") else []
    return Group(Rule(title, align="left"), Text(" · ".join(facts), style="dim"), *hops, *error, *said)


def _hops(rollout: Mapping[str, Any]) -> Iterator[str]:
    """Where its seconds went, as far as that is known."""
    known = [f"{name} {_short(rollout[key])}" for key, name in _HOPS if rollout.get(key) is not None]
    if known:
        yield f"seconds: {' · '.join(known)}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _messages(rollout: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    told = rollout.get("conversation") or {}
    given = told.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    for item in [*items, *(told.get("output") or [])]:
        match item.get("type"):
            case "function_call":
                yield "tool", f"{item.get('name')}({item.get('arguments')})"
            case "function_call_output":
                yield "tool", f"→ {item.get('output')}"
            case "reasoning":
                yield "assistant", f"(reasoning) {_text(item.get('summary') or item.get('content'))}"
            case _:
                yield str(item.get("role", item.get("type"))), _text(item.get("content"))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            one if isinstance(one, str) else str(one.get("text") or f"[{one.get('type')}]") for one in content
        )
    return "" if content is None else json.dumps(content)
