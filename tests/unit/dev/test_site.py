"""The site of the documentation: links out of docs/, pages that read alike in the repository, assets, navigation.

That all of docs/ builds is what `make site` checks.
"""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown import Markdown

from dev.site.hooks import SLUGIFY, Links, LinksExtension, differences, foreign_assets, with_folders

ROOT = Path(__file__).parents[3]
MADE = ("docs", "out", "dist", "build")  # docs/ is the site's; the others are git's to ignore
OTHER_PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")])
    if path.relative_to(ROOT).parts[0] not in MADE
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("docs/page.md", "docs/decisions/0002-b.md", "docs/decisions/0001-a.md", "examples/run.yaml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "README.md").write_text("# Title\n\n## What it `does` & how\n\n```\n# no heading\n```\n")
    return tmp_path


def rendered(repository: Path, text: str, *, url: str = "", page: str = "page.md") -> str:
    links = Links(repository / "docs", url)
    links.page = repository / "docs" / page
    return Markdown(extensions=[LinksExtension(links)]).convert(text)


def test_a_link_to_a_file_outside_leads_to_the_repository(repository: Path) -> None:
    html = rendered(repository, "[a run](../examples/run.yaml)", url="https://git.example.com/gymtrain/")
    assert 'href="https://git.example.com/gymtrain/blob/HEAD/examples/run.yaml"' in html


def test_a_link_to_a_heading_outside_keeps_it(repository: Path) -> None:
    html = rendered(repository, "[it](../README.md#what-it-does--how)", url="https://git.example.com/gymtrain")
    assert 'href="https://git.example.com/gymtrain/blob/HEAD/README.md#what-it-does--how"' in html


def test_without_a_repository_a_link_is_text_that_names_the_file(repository: Path) -> None:
    html = rendered(repository, "[a run](../examples/run.yaml), [`examples/run.yaml`](../examples/run.yaml)")
    assert "<span>a run (<code>examples/run.yaml</code>)</span>, <span><code>examples/run.yaml</code></span>" in html
    assert "href" not in html


def test_a_link_to_a_folder_of_docs_leads_to_the_repository(repository: Path) -> None:
    html = rendered(repository, "[all](decisions/)", url="https://git.example.com/gymtrain")
    assert 'href="https://git.example.com/gymtrain/blob/HEAD/docs/decisions"' in html


def test_a_page_in_a_folder_links_from_there(repository: Path) -> None:
    html = rendered(repository, "[a](../../examples/run.yaml)", url="https://x", page="decisions/0001-a.md")
    assert 'href="https://x/blob/HEAD/examples/run.yaml"' in html


@pytest.mark.parametrize("link", ["page.md", "https://example.com/a", "#title", "mailto:a@example.com", "nowhere.md"])
def test_other_links_are_left_to_mkdocs(repository: Path, link: str, caplog: pytest.LogCaptureFixture) -> None:
    assert f'href="{link}"' in rendered(repository, f"[a]({link})", url="https://x")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("../nowhere.md", "no such file"),
        ("../../outside", "no such file"),
        ("../README.md#nothing", "no such heading"),
        ("../README.md#no-heading", "no such heading"),
    ],
)
def test_a_link_to_nothing_is_a_warning(
    repository: Path, link: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    (repository.parent / "outside").touch()
    with caplog.at_level(logging.WARNING):
        rendered(repository, f"[a]({link})")
    (record,) = caplog.records
    assert f"'docs/page.md' links to '{link}'" in record.getMessage()
    assert why in record.getMessage()
    assert record.name.startswith("mkdocs."), "the strict build counts only mkdocs' own loggers"


@pytest.mark.parametrize("path", OTHER_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_pages_outside_the_site_lead_somewhere(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    links = Links(ROOT / "no-site", "")  # so that links into docs/ are checked too
    links.page = path
    with caplog.at_level(logging.WARNING):
        Markdown(extensions=["fenced_code", "tables", LinksExtension(links)]).convert(path.read_text())
    assert [record.getMessage() for record in caplog.records] == []


def test_a_link_in_code_is_none(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    rendered(repository, "`[a](../nowhere.md)`\n\n    [a](../nowhere.md)\n")
    assert caplog.records == []


def test_anchors_are_those_of_the_repositorys_host() -> None:
    assert SLUGIFY("Where `a_b` & c: (d), e", "-") == "where-a_b--c-d-e"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Text:\n\n- a\n- b\n", []),
        ("Text:\n- a\n- b\n", ["0 li instead of 2", "0 ul instead of 1"]),
        ("- a\n\n      code\n", ["0 pre instead of 1"]),
        ("| a | b |\n|---|---|\n| `c\\|d` | e |\n", []),
    ],
)
def test_what_would_read_differently_is_found(text: str, found: list[str]) -> None:
    assert differences(text, Markdown(extensions=["tables"]).convert(text)) == found


@pytest.mark.parametrize(
    ("page", "code"),
    [
        ("# Page\n\n[a](../examples/run.yaml) [b](#page)\n", 0),
        ("# Page\n\n[a](../examples/nothing.yaml)\n", 1),
        ("# Page\n\n[a](#nothing)\n", 1),
        ("# Page\n\n[a](nothing.md)\n", 1),
        ("# Page\n\nText:\n- a\n", 1),
    ],
)
def test_make_site_fails_on_what_it_finds(repository: Path, page: str, code: int) -> None:
    (repository / "docs/page.md").write_text(page)
    # The project's own configuration, with another navigation, and from elsewhere.
    (repository / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\n"
        f"theme: {{name: material, custom_dir: {ROOT}/dev/site/overrides}}\n"
        f"hooks: [{ROOT}/dev/site/hooks.py]\n"
        "nav: [page.md, {Decisions: decisions/*}]\n"
    )
    (arguments,) = re.findall(r"\$\(RUN\) mkdocs (.*)", (ROOT / "Makefile").read_text())
    command = [sys.executable, "-m", "mkdocs", *arguments.split(), "--config-file", str(repository / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr


def test_a_folder_in_the_navigation_stands_for_its_pages(repository: Path) -> None:
    nav = [{"Why": "page.md"}, {"Decisions": "decisions/*"}]
    assert with_folders(nav, repository / "docs") == [
        {"Why": "page.md"},
        {"Decisions": ["decisions/0001-a.md", "decisions/0002-b.md"]},
    ]


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn.example.com/a.js"></script>', ["https://cdn.example.com/a.js"]),
        ('<link rel="preconnect" href="//fonts.example.com">', ["//fonts.example.com"]),
        ('<link rel="canonical" href="https://docs.example.com/page.html"><script src="a.js"></script>', []),
        ('<a href="https://example.com"><img src="a.png"></a>', []),
    ],
)
def test_what_a_page_loads_from_another_host_is_found(html: str, found: list[str]) -> None:
    assert foreign_assets(html) == found
