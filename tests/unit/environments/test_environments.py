"""How NeMo Gym's environments are tried: the policy that plays them, what a failure is told to be, and the page."""

import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.environments import images, page, suite
from tests.environments.catalogue import Environment, environment
from tests.environments.images import IMAGES, Image
from tests.environments.outcome import NOTE_LENGTH, Outcome, Verdict, cause, missing_packages, note, wants_network
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
        ("Command 'cd a && git clone https://github.com/a/b/; fi' returned non-zero exit status 128.", True),
        ("KeyError: 'answer'", False),
    ],
)
def test_what_wasnt_reached_outside_is_told_from_other_errors(text: str, wanted: bool) -> None:
    assert wants_network(text) is wanted


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            ["ModuleNotFoundError: No module named 'nltk'", "Name or service not known"],
            ("needs packages", ("nltk",), ()),
        ),
        (
            [
                "2 validation errors for CritPtConfig\napi_key\n  Input should be a valid string [input_value=None]\n"
                "engine\n  Field required [type=missing]"
            ],
            ("needs keys", (), ("api_key", "engine")),
        ),
        (['RuntimeError("data_path is not configured. Stage it")'], ("needs keys", (), ("data_path",))),
        (["WARNING:root:image is not configured. Some rows fail"], ("fails", (), ())),
        (["FileNotFoundError: [Errno 2] No such file or directory: 'placeholder'"], ("needs keys", (), ())),
        (["RuntimeError: Sandbox not ready after waiting 240s"], ("needs a service", (), ())),
        (["urlopen error [Errno -2] Name or service not known"], ("needs network", (), ())),
        (
            ["Error: No available node types can fulfill resource request {'CPU': 1.0, 'GPU': 0.25}. Add"],
            ("needs a GPU", (), ()),
        ),
        (["KeyError: 'answer'"], ("fails", (), ())),
    ],
)
def test_the_cause_is_what_has_to_be_mended_first(
    texts: list[str], expected: tuple[str, tuple[str, ...], tuple[str, ...]]
) -> None:
    found = cause(texts)
    assert (found.verdict, found.packages, found.keys) == expected


def test_an_environment_is_tried_with_the_next_image_only_if_packages_are_missing() -> None:
    def trial(verdicts: dict[str, Verdict]) -> tuple[Outcome, list[str]]:
        tried: list[str] = []

        def once(environment: Environment, image: Image) -> Outcome:
            tried.append(image.name)
            return Outcome(environment.name, "", verdicts[image.name], image=image.name)

        return suite.best(Environment("mcqa", ()), once), tried

    first, second = (image.name for image in IMAGES)
    assert trial({first: "fails", second: "runs"}) == (Outcome("mcqa", "", "fails", image=first), [first])
    lacks = trial({first: "needs packages", second: "runs"})
    assert lacks == (Outcome("mcqa", "", "runs", image=second), [first, second])
    assert trial({first: "needs packages", second: "needs packages"})[0].image == second


def test_what_is_recorded_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(suite, "environments", lambda: [Environment("mcqa", ()), Environment("chem", ())])
    monkeypatch.setattr(images, "python", lambda image: sys.executable)
    monkeypatch.setattr(page, "load", lambda: Recorded("0.4.0", ("chem", "mcqa"), (Outcome("mcqa", "", "runs"),)))
    monkeypatch.setattr(suite, "_tried", lambda tried, *_: Outcome(tried.name, "", "runs"))
    monkeypatch.setattr(suite, "_record", lambda outcome, known: recorded.append(outcome.name))
    assert suite.run([], None, untried=True) == 0
    assert recorded == ["chem"]
    assert suite.run(["mcqa"], None) == 0
    assert recorded == ["chem", "mcqa"]


def test_the_packages_of_an_image_are_those_of_its_dockerfile() -> None:
    for image in IMAGES:
        text = (images.ROOT / "images" / image.name / "Dockerfile").read_text()
        assert tuple(re.findall(r"--extra (\S+)", text)) == image.extras


def test_servers_of_a_trial_that_takes_too_long_end_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = "import subprocess, sys; subprocess.run(['sh', '-c', 'echo $$ > \"$0\"; exec sleep 600', sys.argv[1]])"
    with pytest.raises(subprocess.TimeoutExpired):
        suite.run_with_children([sys.executable, "-c", script, str(pid)], seconds=5)
    deadline = time.monotonic() + 60
    while _lives(int(pid.read_text())):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _environment(root: Path, **files: str) -> Environment:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return environment(root / "resources_servers" / "chem")


def test_the_config_of_the_environments_own_name_is_tried_first(tmp_path: Path) -> None:
    agent = "x:\n  responses_api_agents:\n"
    found = _environment(
        tmp_path,
        resources_servers__chem__configs__a_yaml=agent,
        resources_servers__chem__configs__chem_yaml=agent,
    )
    assert found == Environment("chem", ("resources_servers/chem/configs/chem.yaml",), ("a.yaml",))


def test_an_environment_without_an_agent_is_tried_with_the_agents_config_that_names_it(tmp_path: Path) -> None:
    found = _environment(
        tmp_path,
        resources_servers__chem__configs__chem_yaml="x: 1\n",
        responses_api_agents__lab__configs__lab_chem_yaml="x: 1\n",
    )
    assert found.configs == (
        "resources_servers/chem/configs/chem.yaml",
        "responses_api_agents/lab/configs/lab_chem.yaml",
    )


def test_an_environment_that_no_agent_is_for_has_no_config(tmp_path: Path) -> None:
    assert _environment(tmp_path, resources_servers__chem__configs__chem_yaml="x: 1\n").configs == ()


def test_a_note_is_one_line_of_bounded_length() -> None:
    assert note("a\n  b") == "a b"
    assert note("can't open '/tmp/e-1/x.yaml'") == "can't open '/tmp/…'"
    assert note("git clone a '/home/me/.venv/lib/python3.13/site-packages/a/b'") == "git clone a '…/a/b'"
    assert len(note("word " * 200)) <= NOTE_LENGTH


def test_the_table_counts_verdicts_and_says_what_is_needed() -> None:
    other = Outcome("other", "c.yaml", "fails", note="a | b", date="2026-11-22")
    runs = Outcome("mcqa", "a.yaml", "runs", beside=("b.yaml",), rows=(5, 5), tools=True, date="2026-11-23")
    lacks = Outcome(
        "chem", "b.yaml", "needs packages", "more", packages=("rdkit",), keys=("judge_url",), date="2026-11-22"
    )
    text = render(TEXT, Recorded("0.4.0", ("chem", "mcqa", "new", "other"), (lacks, runs, other)))
    assert (
        "NeMo Gym 0.4.0, 2026-11-22 to 2026-11-23: 3 of 4 environments were tried; 1 runs, 1 needs packages, 1 fails."
        in text
    )
    assert "| mcqa | runs (5 rows) | gym | yes |  | `a.yaml`, `b.yaml` |" in text
    assert "| chem | **needs packages** | more |  | packages `rdkit`; values for `judge_url` | `b.yaml` |" in text
    assert r"| other | **fails** | gym |  | a \| b | `c.yaml` |" in text
    assert text.startswith("# Page")
    assert text.endswith("More.\n")


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no lines"):
        render("# Page\n", Recorded("0.4.0", (), ()))


def test_outcomes_survive_json() -> None:
    recorded = page.load()
    assert recorded.outcomes
    assert outcome_of(json.loads(json.dumps(dataclasses.asdict(recorded.outcomes[0])))) == recorded.outcomes[0]
