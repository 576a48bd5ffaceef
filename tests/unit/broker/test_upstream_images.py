"""Image names of SWE-bench, SWE-gym, R2E-Gym and their like, as examples/swe-upstream-images.yaml has them pulled."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_trainer.rollouts.upcoming import of_row
from tests.unit.broker.conftest import settings

EXAMPLE = Path(__file__).parents[3] / "examples" / "swe-upstream-images.yaml"
COMMIT = "f0d74880deec8fcd982bce639c93c5e130d41198"

# Rows as the datasets have them, and what a node pulls.
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "SWE-bench Verified": (
        {"instance_id": "django__django-11099", "subset": "verified"},
        "mirror.example.com/swe-bench/sweb.eval.x86_64.django_1776_django-11099:latest",
    ),
    "SWE-gym": (
        {"instance_id": "Project-MONAI__MONAI-1121", "subset": "gym"},
        "mirror.example.com/docker-hub/xingyaoww/sweb.eval.x86_64.project-monai_s_monai-1121:latest",
    ),
    "R2E-Gym": (
        {"instance_id": COMMIT, "image_name": f"namanjain12/aiohttp_final:{COMMIT}"},
        f"mirror.example.com/docker-hub/namanjain12/aiohttp_final:{COMMIT}",
    ),
    "SWE-smith": (
        {
            "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
            "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
        },
        "mirror.example.com/docker-hub/jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    ),
    "another registry": (
        {"instance_id": "a", "image_name": "ghcr.io/epoch-research/swe-bench.eval.x86_64.astropy__astropy-13236"},
        "ghcr.io/epoch-research/swe-bench.eval.x86_64.astropy__astropy-13236",
    ),
    "by its digest": (
        {"instance_id": "a", "image_name": f"swebench/a@sha256:{'0' * 64}"},
        f"mirror.example.com/swe-bench/a@sha256:{'0' * 64}",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_gets_its_image_from_where_the_run_says(name: str) -> None:
    row, pulled = ROWS[name]
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]["sandboxes"]
    upcoming = of_row(row)
    assert upcoming is not None
    request = SandboxRequest(image=upcoming.image, task=upcoming.task)
    shape = PodShapes(settings(**spec)).of(request.image)
    pod = shape.body["spec"]
    assert (shape.image, shape.asked) == (pulled, upcoming.image)
    assert pod["containers"][0]["image"] == pulled
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]
    assert pod["securityContext"]["runAsUser"] == 0
