"""What the documents tell people to type is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = [folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))])


def test_documents_are_found() -> None:
    assert ROOT / "README.md" in DOCUMENTS
    assert len(DOCUMENTS) > 20


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_task_that_a_document_names_exists(path: Path) -> None:
    tasks = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text()
    named = {
        *re.findall(r"`make ([a-z0-9-]+)", text),
        *re.findall(r"^make ([a-z0-9-]+)(?: *$| +#)", text, re.MULTILINE),
    }
    assert named <= tasks, f"the Makefile has no {', '.join(sorted(named - tasks))}"
