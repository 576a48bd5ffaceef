"""The report of a run: curves, evaluations, and its recorded rollouts.

    python -m gymtrain_report write FOLDER -o report.html      one HTML file, which needs nothing else
    python -m gymtrain_report serve FOLDER                     the same page, live, with all rollouts
    python -m gymtrain_report rollouts FOLDER --search WORDS   rollouts as lines of JSON

FOLDER is the run's folder on its checkpoint volume, or a copy of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gymtrain_report.choice import choose, shown
from gymtrain_report.errors import ReportError
from gymtrain_report.folder import RunFolder, conversation, texts
from gymtrain_report.live import Live, serve
from gymtrain_report.page import file_of, room_for_rollouts

_MIB = 1 << 20
_SIGN_SECONDS = 10.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gymtrain_report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory-mib", type=int, help="memory at most; without it, all that there is")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    write = commands.add_parser("write", help="write the page as one HTML file")
    write.add_argument("-o", "--output", default="report.html", help="file, or - for standard output (%(default)s)")
    write.add_argument("--max-mib", type=int, default=50, help="size of the file at most (%(default)s)")
    live = commands.add_parser("serve", help="serve the page, live")
    live.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    live.add_argument("--port", type=int, default=8010, help="port to listen on; 0: any that is free (%(default)s)")
    live.add_argument("--until-stdin-ends", action="store_true", help="end with the standard input")
    rollouts = commands.add_parser("rollouts", help="print rollouts as lines of JSON, oldest first")
    rollouts.add_argument("--search", default="", metavar="WORDS", help="only those in which all words occur")
    rollouts.add_argument("--outcome", help="only trained, dropped, lost, zeroed or evaluated ones")
    rollouts.add_argument("--agent", help="only those of this agent")
    rollouts.add_argument("--step", type=int, help="only those of this step")
    rollouts.add_argument("--limit", type=int, default=100, help="rollouts at most (%(default)s)")
    for one in (write, live, rollouts):
        one.add_argument("folder", type=Path, metavar="FOLDER")
        one.add_argument("--run", default="", help="name of the run (the folder's)")
    return parser


def _write(folder: RunFolder, output: str, max_mib: int) -> None:
    chosen = choose(folder, room_for_rollouts(folder, max_mib * _MIB))
    page = file_of(folder, chosen)
    if output == "-":
        sys.stdout.write(page)
        sys.stdout.flush()
    else:
        Path(output).write_text(page)
    print(f"{len(page) / _MIB:.1f} MiB. {chosen.sample}", file=sys.stderr)


def _rollouts(folder: RunFolder, arguments: argparse.Namespace) -> None:
    words, left = arguments.search.lower().split(), arguments.limit
    for file in folder.files():
        if arguments.step not in (None, file.step):
            continue
        for row in folder.rollouts(file):
            if arguments.outcome not in (None, row["outcome"]) or arguments.agent not in (None, row["agent"]):
                continue
            said = " ".join((*texts(conversation(row)), row.get("error") or "")).lower() if words else ""
            if not all(word in said for word in words):
                continue
            if left <= 0:
                print(f"there are more than {arguments.limit}: --limit shows more", file=sys.stderr)
                return
            print(json.dumps(shown(row)), flush=True)
            left -= 1


@contextlib.contextmanager
def _signs_of_life() -> Iterator[None]:
    """While records are read: who waits at the end of a connection takes silence for its loss."""
    over, begin = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(_SIGN_SECONDS):
            print(f"reading the records: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _serve(arguments: argparse.Namespace) -> None:
    place = tempfile.TemporaryDirectory(prefix="gymtrain-report-", ignore_cleanup_errors=True)
    with place as name, contextlib.suppress(KeyboardInterrupt):
        live = Live(arguments.folder, Path(name, "index.sqlite"), arguments.run)
        until = _stdin_ends if arguments.until_stdin_ends else None
        serve(live, arguments.host, arguments.port, lambda port: _tell(f"http://{arguments.host}:{port}"), until)


def _tell(address: str) -> None:
    print(address, flush=True)


def _stdin_ends() -> None:
    while os.read(0, 1 << 16):
        pass


def _bound_memory(mebibytes: int) -> None:
    """Beside a trainer in its container: where memory runs out, it is this process that fails."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others reserve more than they use
    resource.setrlimit(resource.RLIMIT_DATA, (mebibytes * _MIB, mebibytes * _MIB))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if arguments.memory_mib:
        _bound_memory(arguments.memory_mib)
    try:
        if arguments.command == "serve":
            _serve(arguments)
            return 0
        with _signs_of_life():
            folder = RunFolder(arguments.folder, arguments.run)
            if arguments.command == "write":
                _write(folder, arguments.output, arguments.max_mib)
            else:
                _rollouts(folder, arguments)
    except (ReportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print(f"error: {arguments.memory_mib} MiB of memory are too little: ask for less", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
