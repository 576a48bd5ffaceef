"""What mkdocs is told beside mkdocs.yml, so that pages read alike in the site and in the repository.

Pages link to files of the repository by relative paths, which work where the repository is read. A site has only what
is in docs/, so there these links lead to the repository (`repo_url`), or are text if it isn't known. A link to a file
or heading that doesn't exist is a warning, and so an error of the strict build. mkdocs itself checks the links within
docs/.

mkdocs reads Markdown by other rules than CommonMark, which the hosts of repositories follow: a list needs an empty line
before it, and what belongs to an item four spaces. A page with other lists, tables or blocks of code by the one than by
the other is a warning.
"""

import os
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element, SubElement

from markdown import Markdown
from markdown.extensions import Extension
from markdown.extensions.toc import TocExtension
from markdown.treeprocessors import Treeprocessor
from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

log = get_plugin_logger("site")

SLUGIFY = slugify(case="lower")
"""Makes the anchor of a heading as GitHub and GitLab do, so that links to anchors work here and there."""

# Of both, links with it lead to the default branch, and for a folder to its listing.
_DEFAULT_BRANCH = "blob/HEAD"


class Links(Treeprocessor):
    """Changes links of the page at hand that lead out of the site."""

    def __init__(self, docs: Path, repository: str) -> None:
        super().__init__()
        self._docs = docs
        self._root = docs.parent
        self._repository = repository.rstrip("/")
        self.page = docs / "index.md"

    def run(self, root: Element) -> None:
        """What Python-Markdown calls with each page."""
        for element in list(root.iter()):
            if element.tag == "a" and (link := element.get("href")):
                self._check(element, link)

    def _check(self, element: Element, link: str) -> None:
        parts = urlsplit(link)
        # "&" begins a mail address, which Python-Markdown writes in entities.
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith(("/", "&", "\x02")):
            return
        target = Path(os.path.normpath(self.page.parent / unquote(parts.path)))
        if target.is_relative_to(self._docs) and not target.is_dir():
            return
        page = self.page.relative_to(self._root)
        if not target.is_relative_to(self._root) or not target.exists():
            log.warning(f"'{page}' links to '{link}', and the repository has no such file.")
        elif parts.fragment and target.suffix == ".md" and parts.fragment not in _anchors(target):
            log.warning(f"'{page}' links to '{link}', and that file has no such heading.")
        else:
            self._lead(element, str(target.relative_to(self._root)), parts.fragment)

    def _lead(self, element: Element, path: str, fragment: str) -> None:
        if self._repository:
            element.set("href", f"{self._repository}/{_DEFAULT_BRANCH}/{path}" + (f"#{fragment}" if fragment else ""))
            return
        element.tag = "span"
        del element.attrib["href"]
        if path not in "".join(element.itertext()):
            last = list(element)[-1] if len(element) else None
            if last is None:
                element.text = f"{element.text or ''} ("
            else:
                last.tail = f"{last.tail or ''} ("
            SubElement(element, "code").text = path
            list(element)[-1].tail = ")"


class LinksExtension(Extension):
    """Puts `links` into Python-Markdown."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self.links = links

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # After the inline patterns (20), which make the links, and before mkdocs' own check of them (0).
        md.treeprocessors.register(self.links, "links_out_of_docs", 5)


@cache
def _anchors(file: Path) -> frozenset[str]:
    """The anchors of a Markdown file's headings."""
    markdown = Markdown(extensions=["fenced_code", TocExtension(slugify=SLUGIFY)])
    markdown.convert(file.read_text())
    tokens: list[dict[str, Any]] = list(getattr(markdown, "toc_tokens", []))
    found: set[str] = set()
    while tokens:
        token = tokens.pop()
        found.add(token["id"])
        tokens += token["children"]
    return frozenset(found)


def with_folders(nav: Any, docs: Path) -> Any:
    """The navigation, with the pages of a folder, in the order of their names, in place of "folder/*"."""
    if isinstance(nav, list):
        return [with_folders(item, docs) for item in nav]
    if isinstance(nav, dict):
        return {title: with_folders(value, docs) for title, value in nav.items()}
    if isinstance(nav, str) and nav.endswith("/*"):
        return [str(path.relative_to(docs)) for path in sorted((docs / nav).parent.glob("*.md"))]
    return nav


class _Tags(HTMLParser):
    """Counts the elements by which a list, a table or a block of code would be seen to be missing."""

    _COUNTED = frozenset({"blockquote", "li", "ol", "pre", "table", "td", "ul"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """What the parser calls."""
        if tag in self._COUNTED:
            self.counts[tag] += 1


def differences(markdown: str, html: str) -> list[str]:
    """Where a page as it was rendered differs from what CommonMark makes of it, such as "3 li instead of 5"."""
    wanted = _Tags(MarkdownIt("commonmark").enable("table").render(markdown)).counts
    found = _Tags(html).counts
    tags = sorted(wanted.keys() | found.keys())
    return [f"{found[tag]} {tag} instead of {wanted[tag]}" for tag in tags if found[tag] != wanted[tag]]


class _Assets(HTMLParser):
    """Finds what a browser loads for a page by itself from another host."""

    _LOADED: ClassVar = {"iframe": "src", "img": "src", "link": "href", "script": "src", "source": "src"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """What the parser calls."""
        address = dict(attrs).get(self._LOADED.get(tag, "")) or ""
        if urlsplit(address).netloc and dict(attrs).get("rel") != "canonical":
            self.foreign.append(address)


def foreign_assets(html: str) -> list[str]:
    """Addresses on other hosts that a page loads something from."""
    return _Assets(html).foreign


_extensions: list[LinksExtension] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs with what mkdocs.yml says."""
    docs = Path(config.docs_dir)
    config.nav = with_folders(config.nav, docs)
    config.mdx_configs.setdefault("toc", {})["slugify"] = SLUGIFY
    extension = LinksExtension(Links(docs, config.repo_url or ""))
    _extensions[:] = [extension]
    config.markdown_extensions.append(extension)  # type: ignore[arg-type] # Python-Markdown takes both
    return config


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Called by mkdocs before it renders a page."""
    _extensions[0].links.page = Path(page.file.abs_src_path or "")
    return markdown


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Called by mkdocs with a page's HTML."""
    if different := differences(page.markdown or "", html):
        log.warning(
            f"'{page.file.src_path}' reads differently here than in the repository ({', '.join(different)}): "
            "lists need an empty line before them, and what belongs to an item an indent of four spaces."
        )
    return html


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Called by mkdocs with a whole page, the theme's part included."""
    for address in foreign_assets(output):
        log.warning(f"'{page.file.src_path}' loads {address}: the site has to work without other hosts.")
    return output
