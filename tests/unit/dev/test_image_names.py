"""The tests use the images that the user published, where the user says so."""

import os
import subprocess
import sys

import pytest

from tests.support import images

TEXT = "source: oci://gymtrain/model-tiny:dev # gymtrain/own:1.0"


def test_images_are_those_that_were_built_here() -> None:
    assert images.published(TEXT) == TEXT


def test_published_images_have_the_users_registry_and_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "REGISTRY", "registry.example.com/team/")
    monkeypatch.setattr(images, "TAG", "0.1.0")
    assert images.published(TEXT) == (
        "source: oci://registry.example.com/team/gymtrain/model-tiny:0.1.0 # gymtrain/own:1.0"
    )


def dev_images(**environment: str) -> subprocess.CompletedProcess[str]:
    """`dev/run images` beside a cluster of the user's."""
    kept = {name: value for name, value in os.environ.items() if name not in ("IMAGE_REGISTRY", "CONTEXT")}
    return subprocess.run(
        [sys.executable, "-m", "dev", "images"],
        env={**kept, "KUBECONFIG": "/nowhere/config", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_is_published_is_not_built() -> None:
    done = dev_images(IMAGE_REGISTRY="registry.example.com/")
    assert done.returncode == 0, done.stderr
    assert "registry.example.com/gymtrain/" in done.stdout + done.stderr


def test_a_cluster_of_the_users_gets_no_images_from_us() -> None:
    done = dev_images()
    assert done.returncode == 1
    assert "IMAGE_REGISTRY" in done.stderr
