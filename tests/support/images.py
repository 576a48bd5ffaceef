"""The names of the project's images: the ones that `make images` builds, or published ones (images/README.md)."""

import os
import re

REGISTRY = os.environ.get("IMAGE_REGISTRY", "")
TAG = os.environ.get("GYMTRAIN_IMAGE_TAG", "dev")
_BUILT = re.compile(r"\bgymtrain/([a-z0-9-]+):dev\b")


def image(name: str) -> str:
    """The image of images/NAME, or of a task of examples/swe."""
    return f"{REGISTRY}gymtrain/{name}:{TAG}"


def published(text: str) -> str:
    """A document that names images as the examples do, with the names of those that are to be used."""
    return _BUILT.sub(lambda found: image(found[1]), text)
