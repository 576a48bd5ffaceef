"""`kubectl gymtrain`, also callable as `gymtrain`."""

import contextlib
import difflib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from gymtrain_api.conditions import ConditionType
from gymtrain_cli.logs import PARTS, Line, followed, merged, seconds_of
from gymtrain_cli.rollouts import OUTCOMES, shown
from gymtrain_client.client import Run, runs_in
from gymtrain_client.cluster import Cluster, LogOptions
from gymtrain_client.errors import ClientError, RunNotFoundError

_INTERRUPTED = 130  # as shells say it of SIGINT
_FAILED = 1  # the run, or what was to be checked
_ERROR = 2
_COMPLETION_SECONDS = 3.0
_PART_COLOURS = {"trainer": "green", "inference": "magenta", "gateway": "cyan", "gym": "yellow", "preflight": "blue"}

app = typer.Typer(
    name="gymtrain",
    help="Work with GymTrainingRuns: check, watch, suspend them, read logs, curves and rollouts, fetch what they made.",
    epilog="Example: gymtrain watch quickstart && gymtrain curve quickstart --png reward.png",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass
class _Options:
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def cluster(self) -> Cluster:
        return Cluster(self.context, self.namespace, self.kubeconfig)

    def run(self, name: str) -> Run:
        """A run, which is there."""
        cluster = self.cluster()
        try:
            cluster.run(name)
        except RunNotFoundError as error:
            near = difflib.get_close_matches(name, _names(cluster), n=3)
            raise RunNotFoundError(f"{error}. Did you mean {' or '.join(near)}?" if near else str(error)) from error
        return Run(cluster, name)


def _names(cluster: Cluster) -> list[str]:
    try:
        return cluster.run_names()
    except ClientError:
        return []


def _complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Names for the shell; none where the cluster takes too long to say."""
    found: list[str] = []

    def ask() -> None:
        given = context.find_root().params
        options = _Options(*(given.get(name) for name in ("namespace", "context", "kubeconfig")))
        with contextlib.suppress(Exception):
            found.extend(name for name in options.cluster().run_names() if name.startswith(incomplete))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_COMPLETION_SECONDS)
    return found


RunName = Annotated[
    str, typer.Argument(help="Name of the GymTrainingRun.", autocompletion=_complete_run, show_default=False)
]


@app.callback()
def _common(
    context: typer.Context,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Namespace of the run (default: the context's).")
    ] = None,
    kube_context: Annotated[
        str | None, typer.Option("--context", help="Context of the kubeconfig (default: the current one).")
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of the kubeconfig (default: KUBECONFIG).")] = None,
) -> None:
    context.obj = _Options(namespace, kube_context, kubeconfig)


@app.command()
def init(
    config: Annotated[
        list[str],
        typer.Argument(
            help="Paths of Gym configs in the Gym image; or environment NAME.",
            show_default=False,
            metavar="CONFIG... | environment NAME",
        ),
    ],
    model: Annotated[str, typer.Option(help="Source of the model.")] = "hf://Qwen/Qwen3-4B-Instruct-2507",
    name: Annotated[str | None, typer.Option(help="Name of the run (default: the config's).")] = None,
    gpus: Annotated[int, typer.Option(min=0, max=8, help="GPUs of vLLM, and of the trainer.")] = 1,
    tools: Annotated[bool, typer.Option(help="Whether the environments call tools.")] = True,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there; of an environment, a folder.")
    ] = None,
) -> None:
    """Write a GymTrainingRun to begin with, with comments: gymtrain init resources_servers/mcqa/configs/mcqa.yaml

    Or an environment of your own to begin with, with its data, test, image and run: gymtrain init environment my_task
    """
    if config[0] == "environment":
        _init_environment(config[1:], output)
        return
    from gymtrain_api.spec import GymTrainingRunSpec
    from gymtrain_cli.init import Wanted, manifest

    text = manifest(Wanted(config, model, name, gpus, tools))
    _check_spec(text, GymTrainingRunSpec)
    if output is None:
        _write(text.rstrip())
        return
    if output.exists():
        raise typer.BadParameter(f"{output} is there already", param_hint="--output")
    output.write_text(text)
    _write(f"written: {output}")


def _init_environment(names: list[str], output: Path | None) -> None:
    from gymtrain_cli.environment import copy_environment

    if len(names) != 1:
        raise typer.BadParameter("give one name: gymtrain init environment my_task", param_hint="CONFIG")
    folder = output or Path(names[0].replace("_", "-"))
    for file in copy_environment(names[0], folder):
        _write(f"written: {file}")
    _write("what they are, and what comes next: docs/own-environment.md")


def _check_spec(text: str, kind: Any) -> None:
    """Refuses what the types refuse, such as a source that is none."""
    import yaml
    from pydantic import ValidationError

    try:
        kind.model_validate(yaml.safe_load(text)["spec"])
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@app.command()
def watch(
    context: typer.Context,
    run: RunName,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Stop watching after this time.")] = 7 * 24 * 3600,
) -> None:
    """Follow a run until it is Complete or Failed (exit code 1)."""
    from gymtrain_cli.watch import follow, follow_live

    options: _Options = context.obj
    found = Run(options.cluster(), run)
    console = Console()
    if console.is_terminal:
        complete = follow_live(lambda: found.status, run, console, timeout)
    else:
        complete = follow(lambda: found.status, _write, timeout)
    raise typer.Exit(0 if complete else _FAILED)


@app.command()
def curve(
    context: typer.Context,
    run: RunName,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the curve as a PNG.")] = None,
) -> None:
    """Draw the reward by step from the trainer's logs."""
    from gymtrain_cli import curve as drawing

    steps = context.obj.run(run).steps()
    _write(drawing.draw_text(run, steps))
    _write(drawing.summary(steps))
    if png:
        drawing.draw_png(run, steps, png)
        _write(f"written: {png}")


@app.command()
def logs(
    context: typer.Context,
    run: RunName,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with new lines until the run has ended.")
    ] = False,
    part: Annotated[
        list[str] | None, typer.Option("-p", "--part", help=f"Only these parts: {', '.join(PARTS)}.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only lines that are newer, such as 10m or 1h30m.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only that many last lines of each container.")] = None,
    previous: Annotated[bool, typer.Option(help="Of the containers before those that run now.")] = False,
) -> None:
    """Show the logs of all parts of a run, merged by time."""
    parts = _known_parts(part or [])
    try:
        seconds = seconds_of(since) if since is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
    found = context.obj.run(run)
    chosen = LogOptions(since_seconds=seconds, tail=tail, previous=previous)
    lines = (
        followed(found.cluster, run, parts, chosen, lambda: _has_ended(found), _say)
        if follow
        else merged(found.cluster, run, parts, chosen)
    )
    _print_lines(lines)


def _known_parts(parts: list[str]) -> list[str]:
    for one in parts:
        if one not in PARTS:
            near = difflib.get_close_matches(one, PARTS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(PARTS)}."
            raise typer.BadParameter(f"no part {one!r}. {hint}", param_hint="--part")
    return parts


def _has_ended(run: Run) -> bool:
    try:
        status = run.status
    except RunNotFoundError:
        return True
    return status.is_true(ConditionType.COMPLETE) or status.is_true(ConditionType.FAILED)


def _print_lines(lines: Iterator[Line]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for line in lines:
        head = f"[{line.part}] {line.pod}: "
        if console.is_terminal:
            console.print(Text(head, style=_PART_COLOURS.get(line.part, "white")) + Text(line.text))
        else:
            _write(head + line.text)


@app.command()
def fetch(
    context: typer.Context,
    run: RunName,
    name: Annotated[
        str, typer.Argument(help="What to copy: model, best, checkpoint-N, records, rewards.csv, evaluations.csv, ...")
    ] = "model",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where to put it.")] = Path(),
) -> None:
    """Copy the model, a checkpoint or records of a run to here."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        bar = bars.add_task(escape(name), total=None)
        made = context.obj.run(run).fetch(
            name, output, lambda done, total: bars.update(bar, completed=done, total=total or None)
        )
    _write(f"written: {made}")


@app.command()
def report(
    context: typer.Context,
    run: RunName,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there (default: RUN.html).")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve it here instead, with all rollouts, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --live; 0: any that is free.")] = 8010,
    max_mib: Annotated[int, typer.Option(min=1, max=1024, help="Size of the file at most, in MiB.")] = 50,
) -> None:
    """Make a page of curves, evaluations and recorded rollouts: one HTML file, or live."""
    found: Run = context.obj.run(run)
    if live:
        _write("the page comes from the run's volume; Ctrl-C ends it")
        found.serve_report(port, lambda address: _write(address))
        return
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task("report", total=None)
        made, said = found.report(output or f"{run}.html", max_mib, lambda done: bars.update(bar, completed=done))
    _write(f"written: {made} ({said})")


@app.command()
def rollouts(
    context: typer.Context,
    run: RunName,
    search: Annotated[str, typer.Option(metavar="WORDS", help="Only those in which all these words occur.")] = "",
    outcome: Annotated[
        str | None, typer.Option(help=f"Only {', '.join(OUTCOMES[:-1])} or {OUTCOMES[-1]} ones.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Only those of this step.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rollouts at most.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="As lines of JSON.")] = False,
) -> None:
    """Read recorded rollouts: prompts, answers, tool calls, rewards, failures. Oldest first."""
    import json

    if outcome is not None and outcome not in OUTCOMES:
        near = difflib.get_close_matches(outcome, OUTCOMES, n=1)
        raise typer.BadParameter(
            f"no outcome {outcome!r}. {f'Did you mean {near[0]}?' if near else ''}", param_hint="--outcome"
        )
    console, count = Console(highlight=False), 0
    for one in context.obj.run(run).rollouts(search=search, outcome=outcome, agent=agent, step=step, limit=limit):
        count += 1
        if as_json:
            _write(json.dumps(one))
        else:
            console.print(shown(one), soft_wrap=not console.is_terminal)
    if not count:
        _say("there are none: are they recorded (spec.trainer.records.rollouts), and is the search too narrow?")


@app.command()
def validate(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(help="Name of a run that is there.", autocompletion=_complete_run, show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="YAML file with runs.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time for each run's preflight.")] = 1800,
    show_effective: Annotated[
        bool,
        typer.Option("--show-effective", help="Also print, as YAML, what the run becomes with the cluster's defaults."),
    ] = False,
) -> None:
    """Let the cluster check a run by types, admission and preflight, without a GPU. Exit code 1 if it fails."""
    from gymtrain_cli.validate import effective
    from gymtrain_cli.validate import validate as check

    if (run is None) == (file is None):
        raise typer.BadParameter("give either the name of a run, or a file with -f", param_hint="RUN")
    cluster: Cluster = context.obj.cluster()
    wanted = runs_in(file) if file is not None else [cluster.run(str(run))]
    failed = False
    for one in wanted:
        name = one["metadata"].get("name", "")
        verdict = check(cluster, one, timeout, lambda text, name=name: _say(f"{name}: {text}"))  # type: ignore[misc]  # `name` has no type there
        failed = failed or not verdict.passed
        _write(f"{name}: {'passed' if verdict.passed else 'FAILED'}: {verdict.message}")
        if show_effective:
            import yaml

            _write("---\n" + yaml.safe_dump(effective(one, verdict.defaults), sort_keys=False).rstrip())
    raise typer.Exit(_FAILED if failed else 0)


@app.command()
def suspend(context: typer.Context, run: RunName) -> None:
    """Stop a run and free its pods. It can be resumed from its last checkpoint."""
    _set_suspended(context.obj.run(run), wanted=True)


@app.command()
def resume(context: typer.Context, run: RunName) -> None:
    """Let a suspended run go on."""
    _set_suspended(context.obj.run(run), wanted=False)


def _set_suspended(run: Run, *, wanted: bool) -> None:
    spec = run.cluster.run(run.name)["spec"]
    state = "suspended" if wanted else "resumed"
    if bool(spec.get("suspend")) == wanted:
        _write(f"{run.name} is {'suspended' if wanted else 'not suspended'} already")
        return
    if wanted and not (spec.get("trainer") or {}).get("checkpoint"):
        _say(f"warning: {run.name} has no trainer.checkpoint, so it will begin at step 0 again when it is resumed")
    run.suspend() if wanted else run.resume()
    _write(f"{run.name} is {state}")


def _write(line: str) -> None:
    print(line, flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 on success, 1 where the run failed, 2 where the command could not do its work, 130 after Ctrl-C.
    """
    with contextlib.suppress(ValueError):  # in a thread, which gets no signals
        # A pod that was made to read with goes, too, when the command is told to end, or its terminal is closed.
        for one in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:  # Windows has no SIGHUP
            if signal.getsignal(one) == signal.SIG_DFL:  # nohup wants it ignored
                signal.signal(one, signal.default_int_handler)
    try:
        app(_as_kubectl(sys.argv[1:] if argv is None else argv), prog_name=_called_as())
    except SystemExit as end:  # Typer's: after each command, and of arguments that are wrong
        return end.code if isinstance(end.code, int) else 0
    except ClientError as error:
        _say(f"error: {error}")
        return _ERROR
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


_ANYWHERE = ("-n", "--namespace", "--context", "--kubeconfig")


def _as_kubectl(arguments: list[str]) -> list[str]:
    """The arguments with those of every command in front, which kubectl takes behind a command, too."""
    front: list[str] = []
    rest: list[str] = []
    left = iter(arguments)
    for one in left:
        if one == "--":
            return [*front, *rest, one, *left]
        if one in _ANYWHERE:
            if (value := next(left, None)) is None:
                return [one]  # the parser says what is missing
            front += [one, value]
        elif one.startswith(tuple(f"{name}=" for name in _ANYWHERE[1:])):
            front.append(one)
        else:
            rest.append(one)
    return [*front, *rest]


def _called_as() -> str:
    return "kubectl gymtrain" if Path(sys.argv[0]).name.startswith("kubectl-") else "gymtrain"


if __name__ == "__main__":
    sys.exit(main())
