"""What a model without skill is held to, so that each of its turns calls a tool of the row: an EBNF grammar for vLLM.

    thought? content? <tool_call>{"name": NAME, "arguments": {...}}</tool_call>

Names and arguments fit the row's tools. All else is left to chance, and more of it than a trained model would use:
white space in the JSON, escapes, optional arguments, any letters in texts. Templates write calls in one way only, so
most turns come back from the template in other tokens than the model sampled, and many in another text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_RULES = r"""
text ::= [A-Za-z] [^<\0-\x1f]{0,24}
thought ::= "<think>\n" text ("\n" text)? "\n</think>\n\n"
space ::= " "? | "\n"
string ::= "\"" character{0,12} "\""
character ::= [^<\"\\\0-\x1f] | "\\" [\"\\/nt] | "\\u00" [4-7e] [0-9a-e]
number ::= [1-9]
numbers ::= "[" space (value ("," space value){0,3})? "]"
value ::= [1-9] [0-9]{0,2}
"""
_VALUES = {"string": "string", "integer": "number"}


def grammar(tools: Sequence[Mapping[str, Any]], *, thinks: bool, most_calls: int) -> str:
    """EBNF of one answer that calls one to `most_calls` of `tools` (function tools of the Responses API).

    Raises:
        ValueError: an argument is of a type that no row had when this was written.
    """
    more = f" (space call){{0,{most_calls - 1}}}" if most_calls > 1 else ""
    names = [f"tool_{number}" for number in range(len(tools))]
    rules = [
        f"root ::= {'thought ' if thinks else ''}(text space)? call{more}",
        *_RULES.strip().splitlines(),
        f'call ::= "<tool_call>" space ({" | ".join(names)}) space "</tool_call>"',
        *(f"{name} ::= {_call(tool)}" for name, tool in zip(names, tools, strict=True)),
    ]
    return "\n".join(rules)


def _call(tool: Mapping[str, Any]) -> str:
    parameters = tool["parameters"]
    pairs = {
        name: f"{_literal(json.dumps(name) + ':')} space {_value(tool['name'], name, schema)}"
        for name, schema in parameters["properties"].items()
    }
    required = [pairs[name] for name in parameters.get("required", [])]
    optional = [pair for name, pair in pairs.items() if name not in parameters.get("required", [])]
    inner = _joined(required)
    if optional:
        choice = f"({' | '.join(optional)})"
        inner += f' ("," space {choice})?' if required else f"({choice})?"
    return (
        f"{_literal('{')} space {_literal(json.dumps('name') + ':')} space {_literal(json.dumps(tool['name']) + ',')} "
        f"space {_literal(json.dumps('arguments') + ':')} space {_literal('{')} {inner} {_literal('}')} {_literal('}')}"
    )


def _joined(pairs: Iterable[str]) -> str:
    return ' "," space '.join(pairs)


def _value(tool: str, name: str, schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "array" and schema["items"].get("type") == "integer":
        return "numbers"
    if kind not in _VALUES:
        raise ValueError(f"tool {tool}, argument {name}: no grammar for type {kind!r}; add it to {__name__}")
    return _VALUES[kind]


def _literal(text: str) -> str:
    """`text` in an EBNF literal, whose escapes are JSON's."""
    return json.dumps(text)
