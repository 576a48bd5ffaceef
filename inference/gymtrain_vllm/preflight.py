"""`python -m gymtrain_vllm.preflight`: would vLLM start with this run's command line? Asked on a CPU, before any GPU is
taken, with the code that makes the command line (`arguments`) and with vLLM's own parser.

Prints one `InferencePreflight` on stdout.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymtrain_api import vllm_releases
from gymtrain_api.runs import parse_run_config
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import PREFLIGHT_MARK, Finding, InferencePreflight
from gymtrain_vllm import acceptance, arguments, environment, model_class_cache, options, vllm_internals
from gymtrain_vllm.errors import ArgumentsError


def preflight() -> InferencePreflight:
    """The verdict on the run that run.json describes. Sets variables of this process, as the server does.

    vLLM is imported only where the image's notes leave a doubt.
    """
    started = time.monotonic()
    spec = parse_run_config(environment.run_config().read_bytes()).spec
    findings = _of_release() or _of_ours(spec)
    asked = False
    if not findings:
        line = arguments.build(spec, environment.model(), environment.port())
        model = _model_config(environment.model())
        notes = options.load()
        asked = notes is None or not acceptance.surely_accepted(spec, line, notes, model)
        if asked:
            _prepare(arguments.variables(spec, os.environ, environment.scratch()))
            findings = acceptance.refusals(spec, line, has_model=model is not None)
    return InferencePreflight(findings=findings, asked_vllm=asked, seconds=round(time.monotonic() - started, 3))


def _of_release() -> list[Finding]:
    """A vLLM with which no argument would help."""
    problem = vllm_releases.too_old(vllm_internals.release())
    return [Finding(where="spec.inference.image", message=problem)] if problem else []


def _of_ours(spec: GymTrainingRunSpec) -> list[Finding]:
    """The arguments that gymtrain itself refuses."""
    findings = [
        Finding(where=f"spec.inference.args[{number}]", message=message)
        for number, message in arguments.reserved(spec.inference.args, spec)
    ]
    if findings:
        return findings
    for where, check in (
        ("spec.inference", lambda: arguments.build(spec, environment.model(), environment.port())),
        ("spec.inference.template", lambda: arguments.variables(spec, os.environ, environment.scratch())),
    ):
        try:
            check()
        except ArgumentsError as error:
            field, colon, message = str(error).partition(": ")
            named = colon and field.startswith("spec.")
            findings.append(Finding(where=field if named else where, message=message if named else str(error)))
    return findings


def _model_config(folder: Path) -> Mapping[str, Any] | None:
    """The model's config.json; None if there is none yet: a model of a hub may not have been fetched. One that
    can't be read is the trainer's preflight to report."""
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _prepare(environment: Mapping[str, str]) -> None:
    """This process becomes as the server's, but for the device: vLLM finds none where there is no GPU."""
    os.environ.update(environment)
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    for name in ("HOME", "TMPDIR", "VLLM_CACHE_ROOT"):
        Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
    model_class_cache.provide(Path(os.environ["VLLM_CACHE_ROOT"]))


def main() -> int:
    """Prints the verdict; 0 whenever it could be made."""
    gc.disable()  # importing vLLM makes millions of objects, and none of them goes
    verdict = preflight()
    print(f"\n{PREFLIGHT_MARK}{verdict.model_dump_json()}", flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # torch's teardown costs a second and has nothing to save
