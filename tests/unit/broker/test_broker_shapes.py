"""Which requests one pod can serve, and what is pulled for them."""

import pytest

from gymtrain_api.sandboxes import SandboxResources
from gymtrain_broker.objects import quantities
from gymtrain_broker.policy.shapes import PodShapes, registry
from tests.unit.broker.conftest import settings


def test_the_first_rewrite_that_fits_applies() -> None:
    shapes = PodShapes(
        settings(
            imageRewrites=[
                {"from": "docker.io/swebench/", "to": "mirror.local:5000/swe/"},
                {"from": "docker.io/", "to": "mirror.local:5000/hub/"},
            ]
        )
    )
    assert shapes.of("docker.io/swebench/a:1").image == "mirror.local:5000/swe/a:1"
    assert shapes.of("docker.io/library/b:1").image == "mirror.local:5000/hub/library/b:1"
    assert shapes.of("quay.io/c:1").image == "quay.io/c:1"
    assert shapes.of("docker.io/swebench/a:1").registry == "mirror.local:5000"


def test_a_rewrite_fits_the_full_name_of_a_short_one() -> None:
    shapes = PodShapes(settings(imageRewrites=[{"from": "docker.io/", "to": "mirror.local/hub/"}]))
    assert shapes.of("swebench/a:1").image == "mirror.local/hub/swebench/a:1"
    assert shapes.of("debian:trixie").image == "mirror.local/hub/library/debian:trixie"
    assert shapes.of("ghcr.io/a/b:1").image == "ghcr.io/a/b:1"
    assert shapes.of("localhost/a:1").image == "localhost/a:1"


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("debian", "docker.io"),
        ("swebench/sweb.eval.x86_64.a:latest", "docker.io"),
        ("ghcr.io/a/b@sha256:0", "ghcr.io"),
        ("localhost/a", "localhost"),
        ("registry:5000/a", "registry:5000"),
    ],
)
def test_an_image_names_its_registry(image: str, host: str) -> None:
    assert registry(image) == host


def test_the_same_request_has_the_same_shape_and_another_has_another() -> None:
    shapes = PodShapes(settings())
    small, large = SandboxResources(memory_mib=512), SandboxResources(memory_mib=1024)
    assert shapes.of("a:1", small).key == shapes.of("a:1", small).key
    assert (
        len({shapes.of("a:1").key, shapes.of("b:1").key, shapes.of("a:1", small).key, shapes.of("a:1", large).key}) == 4
    )


def test_a_changed_spec_changes_the_shape() -> None:
    assert PodShapes(settings()).of("a:1").key != PodShapes(settings(root=True)).of("a:1").key


def test_a_pool_serves_those_that_ask_for_no_more_than_it_has() -> None:
    shapes = PodShapes(
        settings(warmPools=[{"image": "a:1", "reuse": "Restart"}], resources={"limits": {"cpu": "2", "memory": "8Gi"}})
    )
    pooled = shapes.of("a:1")
    assert pooled.reuse
    assert shapes.of("a:1", SandboxResources(cpu=2, memory_mib=8192, disk_gib=20)) is pooled
    larger = shapes.of("a:1", SandboxResources(cpu=4))
    assert larger.key != pooled.key


def test_what_is_asked_for_replaces_the_limits_and_never_lies_below_the_requests() -> None:
    found = quantities.requirements(
        {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "1"}},
        SandboxResources(cpu=0.5, memory_mib=64, disk_gib=1),
    )
    assert found == {
        "requests": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "256Mi"},
        "limits": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "1024Mi", "nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250m", 0.25),
        ("2", 2),
        ("1.5", 1.5),
        ("4Gi", 4 * 1024**3),
        ("1k", 1000),
        ("odd", float("inf")),
        ("1..2", float("inf")),
    ],
)
def test_quantities_have_values(text: str, value: float) -> None:
    assert quantities.number(text) == value
