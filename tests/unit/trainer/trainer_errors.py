"""Errors as NeMo Gym's servers answer them, for tests."""

import json


def raised(error: object) -> bytes:
    """What a server answers that raised an error."""
    return json.dumps(error, ensure_ascii=False).encode()


def passed_on(answer: bytes, *callers: str) -> bytes:
    """The same through servers, the innermost caller first: the expression of nemo_gym/server_utils.py."""
    for caller in callers:
        answer = raised(f"Hit an exception in {caller} calling an inner server: {answer!r}")
    return answer
