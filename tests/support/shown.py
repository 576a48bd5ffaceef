"""The commands that the documentation shows: found in its pages, and run in bash as they stand there."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from tests.support.apiserver import binary
from tests.support.kubectl import PATIENCE
from tests.support.pages import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

type Shell = Callable[[str], str]
"""Runs lines, all of which have to succeed, and returns what they print."""

_FIRST_WORD = re.compile(
    r"(kubectl|helm|make|gymtrain|python|pip|pipx|pytest|curl|vllm|docker|uv|export|hf|cosign|sha256sum|sed"
    r"|dev/\S+|\$\(\S+|[A-Z_]+=\S+)(\s|$)"
)


def blocks(text: str) -> list[str]:
    """Blocks of code that have commands."""
    found = re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [block for kind, block in found if kind in ("", "sh", "bash", "console", "shell")]


def commands(text: str) -> list[str]:
    """Command lines in blocks of code, each on one line, without prompts and comments."""
    found: list[str] = []
    for block in blocks(text):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            bare = re.sub(r"\s+# .*", "", line.strip().removeprefix("$ "))
            if _FIRST_WORD.match(bare):
                found.append(bare)
    return found


def of_page(page: str, *beginnings: str) -> str:
    """The first command of a page, by its path in the repository, that begins with each of these; as lines."""
    found = commands((ROOT / page).read_text())
    lines: list[str] = []
    for one in beginnings:
        line = next((command for command in found if command.startswith(one)), None)
        assert line, f"{page} shows no command that begins with {one}"
        lines.append(line)
    return "\n".join(lines)


def in_bash(lines: str, folder: Path, environment: Mapping[str, str], seconds: float = 600) -> str:
    """What lines print, all of which have to succeed, in a folder, in which `lines.sh` is made of them."""
    script = folder / "lines.sh"  # bash replaces itself by the last command of `-c`, which may look for its shell
    script.write_text(f"{lines}\n")
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shell_of(kubeconfig: Path, folder: Path, namespace: str = "default") -> Shell:
    """bash in a folder that has what the commands take from a checkout, with kubectl and helm on the PATH, for which a
    namespace of the kubeconfig's cluster is the current one."""
    for name in ("Makefile", "charts", "dev", "docs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    config = yaml.safe_load(kubeconfig.read_text())
    (current,) = (one for one in config["contexts"] if one["name"] == config["current-context"])
    current["context"]["namespace"] = namespace
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    programs = [str(Path(binary(name)).parent) for name in ("kubectl", "helm")]
    environment = {name: value for name, value in os.environ.items() if name not in ("CONTEXT", "MAKEFLAGS")}
    environment |= {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "PATH": os.pathsep.join([*programs, "/usr/bin", "/bin"]),
        "GYMTRAIN_PYTHON": sys.executable,
        "NO_PROXY": "*",
    }
    return lambda lines: in_bash(lines, folder, environment, PATIENCE)
