"""A policy that plays any environment: it calls each tool that it is offered once, then answers."""

import json
from typing import Any

from tests.support.fake_policy import FakePolicy, Message

TOOL_CALLS = 3  # at most, in a rollout
ANSWER = "The answer is \\boxed{42}.\n<answer>42</answer>\n<action>Left</action>"
_EXAMPLES: dict[str, Any] = {"string": "a", "integer": 1, "number": 1.0, "boolean": True, "null": None}


class AnyPolicy(FakePolicy):
    """Keeps no state: what comes next follows from the conversation."""

    def __init__(self) -> None:
        super().__init__(self._reply)

    def _reply(self, messages: list[Message]) -> Message:
        tools = [tool["function"] for tool in self.requests[-1].get("tools") or [] if tool.get("type") == "function"]
        called = sum(len(message.get("tool_calls") or []) for message in messages if message["role"] == "assistant")
        if called >= min(len(tools), TOOL_CALLS):
            return {"content": ANSWER}
        tool = tools[called]
        arguments = json.dumps(example(tool.get("parameters") or {"type": "object"}))
        function = {"name": tool["name"], "arguments": arguments}
        return {"content": "I try.", "tool_calls": [{"id": f"call_{called}", "type": "function", "function": function}]}


def example(schema: dict[str, Any]) -> Any:
    """A value that fits a JSON schema, as far as tools' schemas go."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for choice in ("anyOf", "oneOf"):
        if schema.get(choice):
            return example(schema[choice][0])
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: example(properties.get(name) or {"type": "string"}) for name in schema.get("required") or []}
    if kind == "array":
        return [example(schema["items"])] if isinstance(schema.get("items"), dict) and schema["items"] else []
    return _EXAMPLES.get(kind, "a")
