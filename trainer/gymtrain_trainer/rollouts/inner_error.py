"""Reads what went wrong from a Gym server's answer about a failed server behind it. Pure.

A server of NeMo Gym 0.4 that raised an error answers its repr; one that called a server which answered an error wraps
that answer (nemo_gym/server_utils.py, exception_handling_middleware), and both write it as a JSON string:

    "Hit an exception in SimpleAgent___sums calling an inner server: b'\\"Hit an exception in ... b\\\\'...\\\\'\\"'"

So each server on the way adds a JSON string and a Python bytes literal around the last, and escapes of escapes. The
message names who called, not who failed; our launcher has the server that failed add its name and its kind, and the
status where that isn't 500 (its module `answers`):

    "Hit an exception in math (resources server): KeyError('a')"
    {"server": "math", "server_kind": "resources", "status": 409, "detail": "..."}

Newer releases may write another form: what doesn't look like this is shown as it is.
"""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ERROR_BYTES = 64 * 1024  # of an error's body that are read; escapes double at each server, so what is told is far less
QUOTED = 400  # characters of an error that are shown
_SERVERS = 16  # on the way to the innermost error
_CALLED = re.compile(r"Hit an exception in (?:\w+?___)?(?P<server>\S+) calling an inner server: (?=b['\"])")
_RAISED = re.compile(r"Hit an exception in (?P<server>\S+)(?: \((?P<kind>agent|resources|model) server\))?: ")
# A literal's content up to its end, or to where the text was cut; possessive, as nothing is to be tried twice.
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*+)')
_REFUSED = re.compile(r'"loc":\s*\[([^\]]*)\],\s*"msg":\s*("(?:[^"\\]|\\.)*+")')  # FastAPI's, before its `input`
_BYTES = {quote: re.compile(rf"b{quote}((?:[^{quote}\\]|\\x[0-9a-fA-F]{{2}}|\\[^x])*+)", re.DOTALL) for quote in "'\""}


type ServerKind = Literal["agent", "resources", "model"]
type Form = Literal["exception", "detail", "other"]  # the repr of an exception, FastAPI's own document, or else

_KINDS: dict[str | None, ServerKind] = {"agent": "agent", "resources": "resources", "model": "model"}


@dataclass(frozen=True)
class InnerError:
    """The innermost error of an answer; `None` stands for what it doesn't say."""

    text: str  # one line
    server: str | None  # that raised it
    callers: tuple[str, ...]  # servers that passed it on, outermost first
    form: Form
    server_kind: ServerKind | None = None
    status: int | None = None  # of that server's answer

    def __str__(self) -> str:
        """In one line: which server, called by which, and what it says."""
        caller = next((name for name in reversed(self.callers) if name != self.server), None)
        match self.server, caller:
            case None, None:
                return self.text
            case None, _:
                return f"a server that {caller} called: {self.text}"
            case _, None:
                return f"{self.server}: {self.text}"
            case _:
                return f"{self.server}, called by {caller}: {self.text}"


def inner_error(body: str) -> InnerError:
    """Reads the body of an error, which may be cut off at its end."""
    callers: list[str] = []
    for _ in range(_SERVERS):
        text = _plain(body)
        wrapped = _CALLED.match(text)
        if wrapped is None:
            break
        callers.append(wrapped["server"])
        body = _bytes(text[wrapped.end() :])
    text = _plain(body)
    raised = _RAISED.match(text)
    if raised is not None:
        said, kind = text[raised.end() :], _KINDS.get(raised["kind"])
        return InnerError(clipped(said), raised["server"], tuple(callers), "exception", kind)
    return _document(text, tuple(callers), "exception" if body.startswith('"') else "other")


def clipped(text: str, limit: int = QUOTED) -> str:
    """`text` in one line of at most `limit` characters: its beginning and its end, where it is longer."""
    line = " ".join(text.split())
    line = line.encode(errors="replace").decode()  # halves of surrogate pairs would break the progress as JSON
    if len(line) <= limit:
        return line
    mark = " [...] "
    end = (limit - len(mark)) // 3
    return line[: limit - len(mark) - end] + mark + line[-end:]


def _plain(text: str) -> str:
    """The text of a JSON string; anything else as it is."""
    found = _JSON_STRING.match(text)
    if found is None:
        return text
    try:
        return str(json.loads(f'"{found[1]}"', strict=False))
    except ValueError:
        return text


def _bytes(text: str) -> str:
    """The text of a bytes literal."""
    found = _BYTES[text[1]].match(text)
    assert found is not None, "_CALLED looks ahead for its beginning"
    quote = text[1]
    try:
        return bytes(ast.literal_eval(f"b{quote}{found[1]}{quote}")).decode(errors="replace")
    except (ValueError, SyntaxError):
        return found[1]


def _document(text: str, callers: tuple[str, ...], otherwise: Form) -> InnerError:
    """An error that is a JSON object: FastAPI's, vLLM's, or the gateway's; anything else as it is."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        places = [
            f"{re.sub(r'[\s"]', '', loc).replace(',', '.')}: {_plain(msg)}" for loc, msg in _REFUSED.findall(text)
        ]
        return InnerError(clipped("; ".join(places) or text), None, callers, "detail" if places else otherwise)
    if not isinstance(body, Mapping):
        return InnerError(clipped(text), None, callers, otherwise)
    server, status = body.get("server"), body.get("status")
    return InnerError(
        text=clipped(_message(body) or text),
        server=server if isinstance(server, str) else None,
        callers=callers,
        form="detail" if "detail" in body else "other",
        server_kind=_KINDS.get(str(body.get("server_kind"))),
        status=status if isinstance(status, int) else None,
    )


def _message(body: Mapping[str, Any]) -> str | None:
    error, detail = body.get("error"), body.get("detail")
    if isinstance(error, Mapping):
        error = error.get("message")
    if isinstance(detail, list):
        places = [one for one in detail if isinstance(one, Mapping)]
        detail = "; ".join(
            f"{'.'.join(str(part) for part in one.get('loc') or ())}: {one.get('msg')}" for one in places
        )
    return next((one for one in (error, detail, body.get("message")) if isinstance(one, str) and one), None)
