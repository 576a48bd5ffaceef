"""The innermost error of NeMo Gym's nested answers."""

import pytest

from gymtrain_trainer.rollouts.inner_error import ERROR_BYTES, clipped, inner_error
from tests.unit.trainer.trainer_errors import passed_on, raised


def told(answer: bytes) -> str:
    return str(inner_error(answer.decode(errors="replace")))


ERROR = """AttributeError("'NoneType' object has no attribute 'get'")"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (raised(ERROR), ERROR),
        (passed_on(raised(ERROR), "SimpleAgent___sums"), f"a server that sums called: {ERROR}"),
        (passed_on(raised(ERROR), *["SimpleAgent___sums"] * 3), f"a server that sums called: {ERROR}"),
        (
            passed_on(raised(f"Hit an exception in policy_model: {ERROR}"), *["SimpleAgent___sums"] * 2),
            f"policy_model, called by sums: {ERROR}",
        ),
        (passed_on(raised("Hit an exception in sums: KeyError('a')"), "SimpleAgent___sums"), "sums: KeyError('a')"),
        (
            passed_on(b'{"error": {"message": "no vLLM pod", "code": 503}}', "VLLMModel___policy_model", "A___sums"),
            "a server that policy_model called: no vLLM pod",
        ),
        (
            passed_on(b'{"detail": [{"loc": ["body", "id"], "msg": "Field required"}], "server": "math"}', "A___b_c"),
            "math, called by b_c: body.id: Field required",
        ),
        (
            passed_on(raised("Hit an exception in math (resources server): KeyError('a')"), "SimpleAgent___sums"),
            "math, called by sums: KeyError('a')",
        ),
        (b'{"detail": "Not Found"}', "Not Found"),
        (
            passed_on(
                b'{"detail":[{"type":"missing","loc":["body","id"],"msg":"Field required","input":{"a":', "A___b"
            ),
            "a server that b called: body.id: Field required",
        ),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (
            passed_on(raised("Fehler: \u00fc \u2192 'a' \"b\" \\ \n c"), *["A___b"] * 3),
            "a server that b called: Fehler: ü → 'a' \"b\" \\ c",
        ),
        (b"upstream connect error", "upstream connect error"),
        (b"[1, 2]", "[1, 2]"),
        (b"", ""),
    ],
)
def test_the_innermost_error_is_told_with_its_server(answer: bytes, said: str) -> None:
    assert told(answer) == said


def test_an_answer_that_is_cut_off_anywhere_tells_what_there_is_of_it() -> None:
    whole = passed_on(
        raised("Hit an exception in math: ValueError('\\xfc' * 3, \"it's\", '\U0001f600')"), *["A___b"] * 3
    )
    reads = [told(whole[:end]) for end in range(len(whole))]
    assert "math, called by b: ValueError(" in reads[-1]
    assert all("\\\\\\" not in read for read in reads if "ValueError" in read), "no escapes of escapes are left"


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    text = told(raised("KeyError" + " x" * 50_000 + " the end"))
    assert len(text) == 400
    assert text.startswith("KeyError x")
    assert text.endswith("the end")


def test_a_half_of_a_surrogate_pair_can_be_written_as_json() -> None:
    assert told(b'"broken \\ud83d"') == "broken ?"


@pytest.mark.parametrize("unit", [b"\"Hit an exception in a calling an inner server: b'", b"[", b'"\\', b'{"detail":'])
def test_nonsense_of_any_size_is_read_in_one_go(unit: bytes) -> None:
    assert len(told((unit * ERROR_BYTES)[:ERROR_BYTES])) <= 500


def test_short_text_is_only_made_one_line() -> None:
    assert clipped(" a \n b ") == "a b"


@pytest.mark.parametrize(
    ("answer", "server", "kind", "status", "form"),
    [
        (raised(ERROR), None, None, None, "exception"),
        (raised(f"Hit an exception in math: {ERROR}"), "math", None, None, "exception"),
        (raised(f"Hit an exception in math (resources server): {ERROR}"), "math", "resources", None, "exception"),
        (b'{"detail": "gone"}', None, None, None, "detail"),
        (
            b'{"server": "math", "server_kind": "model", "status": 409, "detail": "gone"}',
            "math",
            "model",
            409,
            "detail",
        ),
        (b'{"detail":[{"loc":["body","id"],"msg":"Field required","input":{"a":', None, None, None, "detail"),
        (b'{"error": {"message": "no vLLM pod", "code": 503}}', None, None, None, "other"),
        (b"upstream connect error", None, None, None, "other"),
        (b'{"server": 1, "server_kind": "head", "status": "409", "detail": "gone"}', None, None, None, "detail"),
    ],
)
def test_the_servers_kind_its_status_and_the_form_are_read_where_they_are_told(
    answer: bytes, server: str | None, kind: str | None, status: int | None, form: str
) -> None:
    for passed in (answer, passed_on(answer, *["SimpleAgent___sums"] * 2)):
        read = inner_error(passed.decode())
        assert (read.server, read.server_kind, read.status, read.form) == (server, kind, status, form)
