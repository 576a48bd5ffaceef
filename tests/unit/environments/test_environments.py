"""How NeMo Gym's environments are tried: the policy that plays them, what a failure is told to be, and the page."""

import dataclasses
import json

import pytest

from tests.environments import page
from tests.environments.outcome import NOTE_LENGTH, Outcome, missing_packages, note, wants_network
from tests.environments.page import Recorded, outcome_of, render
from tests.environments.policy import ANSWER, AnyPolicy, example

TEXT = "# Page\n\n<!-- begin table: made by `make test-environments` -->\nold\n<!-- end table -->\n\nMore.\n"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "a"),
        ({"type": ["integer", "null"]}, 1),
        ({"enum": ["left", "right"]}, "left"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, 1.0),
        ({"type": "array", "items": {"type": "boolean"}}, [True]),
        ({"type": "array"}, []),
        (
            {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}, "required": ["x"]},
            {"x": 1},
        ),
        ({"properties": {}, "required": ["unknown"]}, {"unknown": "a"}),
    ],
)
def test_a_tool_is_called_with_arguments_that_fit_its_schema(schema: dict[str, object], value: object) -> None:
    assert example(schema) == value


def test_the_policy_calls_each_tool_once_then_answers() -> None:
    policy = AnyPolicy()
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "ab"]
    policy.requests.append({"tools": tools})
    messages: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
    names = []
    for _ in range(2):
        said = policy.reply(messages)
        names += [call["function"]["name"] for call in said["tool_calls"]]
        messages += [{"role": "assistant", **said}, {"role": "tool", "content": "done"}]
    assert names == ["a", "b"]
    assert policy.reply(messages) == {"content": ANSWER}


def test_missing_packages_are_read_from_findings_and_logs() -> None:
    finding = "server 'x' needs the Python packages rdkit, sympy, which this image lacks; requirements.txt lists them"
    log = "Traceback\nModuleNotFoundError: No module named 'datasets.load'\n"
    assert missing_packages([finding, log]) == ("rdkit", "sympy", "datasets")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("socket.gaierror: [Errno -2] Name or service not known", True),
        ("Cannot connect to host api.tavily.com:443 ssl:default", True),
        ("Cannot connect to host 127.0.0.1:8000 ssl:default", False),
        ("Command '['git', 'clone', 'https://github.com/a/b']' returned non-zero exit status 128.", True),
        ("KeyError: 'answer'", False),
    ],
)
def test_what_wasnt_reached_outside_is_told_from_other_errors(text: str, wanted: bool) -> None:
    assert wants_network(text) is wanted


def test_a_note_is_one_line_of_bounded_length() -> None:
    assert note("a\n  b") == "a b"
    assert note("can't open '/tmp/e-1/x.yaml'") == "can't open '/tmp/…'"
    assert len(note("word " * 200)) <= NOTE_LENGTH


def test_the_table_counts_verdicts_and_says_what_is_needed() -> None:
    other = Outcome("other", "c.yaml", "fails", note="a | b")
    runs = Outcome("mcqa", "a.yaml", "runs", rows=(5, 5), tools=True)
    lacks = Outcome("chem", "b.yaml", "needs packages", packages=("rdkit",), keys=("judge_url",), note="said")
    text = render(TEXT, Recorded("0.4.0", "2026-11-23", 94, (lacks, runs, other)))
    assert "3 of 94 environments were tried; 1 runs, 1 needs packages, 1 fails." in text
    assert "| mcqa | runs (5 rows) | yes |  | `a.yaml` |" in text
    assert r"| chem | **needs packages** |  | packages `rdkit`; values for `judge_url` | `b.yaml` |" in text
    assert r"| other | **fails** |  | a \| b | `c.yaml` |" in text
    assert text.startswith("# Page")
    assert text.endswith("More.\n")


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no lines"):
        render("# Page\n", Recorded("0.4.0", "2026-11-23", 94, ()))


def test_outcomes_survive_json() -> None:
    recorded = page.load()
    assert recorded.outcomes
    assert outcome_of(json.loads(json.dumps(dataclasses.asdict(recorded.outcomes[0])))) == recorded.outcomes[0]
