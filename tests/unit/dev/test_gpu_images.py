"""Images for GPUs: other builds of Dockerfiles that build for CPUs by default."""

from dev.images.buildkit import arguments
from dev.images.dockerfiles import discover, select

GPU = ["runtime-gpu", "inference-gpu", "trainer-gpu"]


def test_images_for_gpus_are_built_when_asked_for_by_name() -> None:
    assert not {image.name for image in select(discover(), [])} & set(GPU)
    assert {image.name for image in select(discover(), ["inference-gpu", "trainer-gpu"])} == {"python-build", *GPU}


def test_the_image_for_more_environments_is_built_when_asked_for_by_name() -> None:
    assert "gym-environments" not in {image.name for image in select(discover(), [])}
    assert "gym-environments" in {image.name for image in select(discover(), ["gym-environments"])}


def test_they_are_the_same_dockerfiles_with_the_extra_for_gpus() -> None:
    images = {image.name: image for image in discover()}
    for name in GPU:
        assert images[name].dockerfile == images[name.removesuffix("-gpu")].dockerfile
    assert arguments(images["runtime-gpu"]) == ["--opt=build-arg:EXTRA=inference-gpu"]
    assert arguments(images["trainer-gpu"]) == ["--opt=build-arg:RUNTIME_IMAGE=gymtrain/runtime-gpu:dev"]
    assert arguments(images["trainer"]) == []


def test_they_are_built_upon_the_runtime_for_gpus() -> None:
    built = [image.name for image in select(discover(), ["trainer-gpu"])]
    assert built == ["python-build", "runtime-gpu", "trainer-gpu"]
