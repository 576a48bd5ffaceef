"""Releases of vLLM that gymtrain works with. docs/versions.md says which were tried.

Before 0.25, vLLM's weight-transfer engines have no start_weight_update and finish_weight_update, and 0.23 can't
derender token ids. Later releases than those that were tried are not refused.
"""

import re

OLDEST = (0, 25)

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?!.*dev)")  # a build between releases may call itself 0.1.dev1+gHASH


def parse(text: str | None) -> tuple[int, int] | None:
    """Major and minor of a release such as 0.32.0+cpu; None if it names none."""
    found = _RELEASE.match(text or "")
    return (int(found[1]), int(found[2])) if found else None


def too_old(text: str | None) -> str | None:
    """What is wrong with a release that gymtrain doesn't work with; None if it does, or may."""
    found = parse(text)
    if found is None or found >= OLDEST:
        return None
    oldest = ".".join(map(str, OLDEST))
    return f"vLLM {text} is too old: gymtrain needs {oldest} or later, for its weight-transfer engines"
