"""The page: one HTML file with its style, its script and its data in it. Nothing of it is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import jinja2

from gymtrain_report.choice import Chosen
from gymtrain_report.folder import RunFolder, finite
from gymtrain_report.overview import overview

_ROOM = 64 << 10  # bytes, for what is neither curves nor rollouts
_STEP = 256  # bytes of where the seconds of a step's rollouts went


def file_of(folder: RunFolder, chosen: Chosen) -> str:
    """The page as a file that needs nobody to serve it."""
    data = {
        "overview": overview(folder, chosen.ends, chosen.hops),
        "rollouts": chosen.rollouts,
        "sample": chosen.sample,
    }
    return _render(folder.run, finite(data))


def live_page(run: str) -> str:
    """The page that asks who serves it."""
    return _render(run, None)


def room_for_rollouts(folder: RunFolder, max_bytes: int) -> int:
    """What is left for them of a file of so many bytes."""
    fixed = len(json.dumps([folder.steps(), folder.evaluations()])) + _STEP * len(folder.files())
    # "<" is escaped in the page, and some of the texts are of other than ASCII characters.
    return max(0, int((max_bytes - fixed - _ROOM) * 0.95))


def _render(run: str, data: dict[str, Any] | None) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gymtrain_report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    script, style = (_source(environment, name) for name in ("report.js", "report.css"))
    # What a model says stands in the data: "<" must not end the script element that it is in.
    text = json.dumps(data, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c") if data is not None else ""
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'"
    return environment.get_template("report.html").render(run=run, script=script, style=style, data=text, policy=policy)


def _source(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _digest(source: str) -> str:
    """As a content security policy names an element's text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
