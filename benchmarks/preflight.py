"""Preflight of the tiny model: with arguments of vLLM that the image's notes know, and with one that vLLM is asked
about, which means importing it. Each is timed from apply to the verdict."""

import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.namespaces import namespace
from benchmarks.report import Result
from gymtrain_api.wiring import PREFLIGHT_MARK
from gymtrain_operator.manifests.preflight import CONTAINERS
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import tiny_run

_DEADLINE = 300.0
_AIM = 25.0  # seconds, on two cores
_LEFT_TO_VLLM = "--max-num-batched-tokens=4096"


def measure(kubectl: Kubectl) -> list[Result]:
    """The figures of two runs, one after the other.

    Raises:
        AssertionError: a preflight didn't pass.
    """
    return [
        *_one(kubectl, "preflight-noted", [], "arguments known to the notes"),
        *_one(kubectl, "preflight-asked", [_LEFT_TO_VLLM], "vLLM is asked"),
    ]


def _one(kubectl: Kubectl, name: str, more: list[str], what: str) -> list[Result]:
    run = tiny_run(name)
    run["spec"]["inference"]["args"] += more
    with namespace(kubectl):
        applied = time.monotonic()
        kubectl.apply(run)
        eventually(_passed(kubectl, name), f"preflight of {name} passes", _DEADLINE, every=0.25)
        took = time.monotonic() - applied
        pod = kubectl.pods(name, role="preflight")[0]["metadata"]["name"]
        verdicts = {container: _verdict(kubectl.logs(pod, container)) for container in CONTAINERS}
    if verdicts["inference"]["asked_vllm"] != bool(more):
        raise AssertionError(f"{name}: vLLM was {'not ' if more else ''}asked; were the notes made with the image?")
    title = f"preflight, {what}"
    parts = [Result(title, f"of it {c}", float(v["seconds"]), "s") for c, v in verdicts.items()]
    return [Result(title, "apply to verdict", took, "s", aim=_AIM), *parts]


def _passed(kubectl: Kubectl, name: str) -> Callable[[], bool]:
    return lambda: kubectl.condition(name, "PreflightPassed").get("status") == "True"


def _verdict(log: str) -> dict[str, Any]:
    text = next(line for line in reversed(log.splitlines()) if PREFLIGHT_MARK in line).partition(PREFLIGHT_MARK)[2]
    found: dict[str, Any] = json.loads(text)
    return found
