"""`kubectl gymtrain`, also callable as `gymtrain`."""

import argparse
import sys
from pathlib import Path

from gymtrain_cli import curve
from gymtrain_cli.errors import CliError
from gymtrain_cli.run_reader import RunReader
from gymtrain_cli.watch import follow

_INTERRUPTED = 130  # as shells say it of SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl gymtrain",
        description="Watch GymTrainingRuns and draw their reward curves.",
        epilog="Example: kubectl gymtrain watch quickstart && kubectl gymtrain curve quickstart --png reward.png",
    )
    parser.add_argument("-n", "--namespace", help="namespace of the run (default: the context's)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    commands = parser.add_subparsers(dest="command", required=True)
    watch = commands.add_parser("watch", help="follow a run until it is Complete or Failed")
    watch.add_argument("run", help="name of the GymTrainingRun")
    watch.add_argument(
        "--timeout",
        type=float,
        default=7 * 24 * 3600,
        metavar="SECONDS",
        help="stop watching after this time (default: 7 days)",
    )
    draw = commands.add_parser("curve", help="draw the reward by step from the trainer's logs")
    draw.add_argument("run", help="name of the GymTrainingRun")
    draw.add_argument("--png", type=Path, metavar="FILE", help="also write the curve as a PNG")
    return parser


def _write(line: str) -> None:
    print(line, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 on success, 1 where the run failed, 2 where the command could not do its work, 130 after Ctrl-C.
    """
    args = _parser().parse_args(argv)
    try:
        runs = RunReader(args.context, args.namespace)
        if args.command == "watch":
            return 0 if follow(lambda: runs.status(args.run), _write, args.timeout) else 1
        steps = curve.parse_steps(runs.trainer_logs(args.run))
        _write(curve.draw_text(args.run, steps))
        _write(curve.summary(steps))
        if args.png:
            curve.draw_png(args.run, steps, args.png)
            _write(f"written: {args.png}")
    except CliError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
