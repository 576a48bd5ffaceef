"""Conversations of several turns: what the model is asked, and what an environment answers to it."""

from dataclasses import dataclass
from typing import Any, Literal

from tests.exactness.model_server import Answer

type Tools = Literal["none", "auto", "required"]

_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "say",
            "description": "Says a text.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "maxLength": 12}},
                "required": ["text"],
            },
        },
    },
]


@dataclass(frozen=True)
class Plan:
    """What all conversations have in common."""

    turns: int
    tools: Tools
    max_tokens: int
    temperature: float
    chat_template_kwargs: dict[str, Any] | None = None

    def opening(self, number: int) -> list[dict[str, Any]]:
        """The first messages of conversation `number`."""
        return [
            {"role": "system", "content": "Work in small steps."},
            {"role": "user", "content": [{"type": "text", "text": f"Task {number}: what is {number % 7} + 4?"}]},
        ]

    def request(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The model call of one turn."""
        body: dict[str, Any] = {
            "model": "policy",
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
        }
        if self.tools != "none":
            body |= {"tools": _TOOLS, "tool_choice": self.tools, "parallel_tool_calls": True}
        if self.chat_template_kwargs is not None:
            body["chat_template_kwargs"] = self.chat_template_kwargs
        return body

    def reply(self, turn: int, answer: Answer) -> list[dict[str, Any]]:
        """What the environment says to an answer."""
        if answer.tool_calls:
            return [
                {"role": "tool", "tool_call_id": call["id"], "content": f"result {turn}: 12 \u00e9\U0001f600"}
                for call in answer.tool_calls
            ]
        return [{"role": "user", "content": [{"type": "text", "text": f"Go on, step {turn}."}]}]
