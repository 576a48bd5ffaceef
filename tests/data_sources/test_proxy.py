"""Datasets and models through a proxy, of hosts whose certificates a private authority signed: each library has its own
way to learn of both, and the pod has only what the operator gives it (docs/defaults.md)."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gymtrain_api.defaults import parse
from gymtrain_trainer.pushing import Pushed, run_push
from tests.data_sources.conftest import Fetch, Store
from tests.data_sources.test_hub import LINES, ROW, parquet
from tests.support.hub import Hub
from tests.support.proxy import Proxy, proxy
from tests.support.world import DEFAULTS, World
from tests.unit.trainer.test_trainer_push import environment, made

pytestmark = pytest.mark.data_sources

HOST = "stores"  # which nothing but the proxy can resolve; with a dot, moto takes its first part for a bucket
IN_THE_POD = "/etc/gymtrain/ca/bundle.crt"


@contextmanager
def behind_a_proxy(url: str, folder: Path) -> Iterator[Proxy]:
    port = urlsplit(url).port
    assert port
    with proxy({HOST: port}, folder) as state:
        yield state


def in_a_pod(state: Proxy) -> dict[str, str]:
    """The variables that the operator gives the container that fetches datasets."""
    world = World(data={"train": [{"source": "s3://rows/train.jsonl"}], "storage": {"size": "1Gi"}})
    cluster = parse({"proxy": {"https": state.url}, "caBundle": {"configMap": "authorities"}}, "defaults")
    world.defaults = replace(DEFAULTS, cluster=cluster)
    world.reconcile()
    (preflight,) = world.objects["Pod"].values()
    variables = {one["name"]: one.get("value", "") for one in preflight["spec"]["initContainers"][0]["env"]}
    wanted = {name: value for name, value in variables.items() if value == IN_THE_POD or "PROXY" in name.upper()}
    assert wanted["HTTPS_PROXY"] == state.url
    return {name: str(state.authority) if value == IN_THE_POD else value for name, value in wanted.items()}


@contextmanager
def outside(store: Store, folder: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """The store where only the proxy finds it: the proxy, and what the Secret holds."""
    (place,) = (found[0] for value in store.secret.values() if (found := re.findall(r"http://[^/;]*", value)))
    with behind_a_proxy(place, folder) as state:
        secret = {name: value.replace(place, f"https://{HOST}") for name, value in store.secret.items()}
        yield state, {name: value.replace("Protocol=http;", "Protocol=https;") for name, value in secret.items()}


def test_an_object_comes_through_the_proxy(store: Store, fetch: Fetch, tmp_path: Path) -> None:
    store.put("proxy/train.jsonl", LINES)
    with outside(store, tmp_path) as (state, secret):
        done = fetch(f"{store.scheme}://rows/proxy/train.jsonl", secret={**secret, **in_a_pod(state)})
    assert done.code == 0, done.output
    assert done.rows() == LINES
    assert set(state.asked) == {HOST}


def test_a_model_is_pushed_through_the_proxy(store: Store, tmp_path: Path) -> None:
    url = f"{store.scheme}://rows/proxy/math"
    made(tmp_path, url)
    with outside(store, tmp_path) as (state, secret):
        environ = environment(tmp_path, **secret) | in_a_pod(state)
        assert run_push("--check", seconds=60, environ=environ) == Pushed(True, "can be written")
        assert run_push(seconds=60, environ=environ) == Pushed(True, url)
    assert store.contents()["proxy/math/model.safetensors"] == b"weights"
    assert set(state.asked) == {HOST}


@pytest.mark.parametrize("path", ["train.jsonl", "train"])
def test_a_file_and_a_split_of_the_hub_come_through_the_proxy(
    path: str, the_hub: Hub, fetch: Fetch, tmp_path: Path
) -> None:
    the_hub.files["org/rows"] = {"train.jsonl": LINES, "data/train-00000-of-00001.parquet": parquet([ROW] * 1000)}
    with behind_a_proxy(the_hub.url, tmp_path) as state:
        the_hub.url = f"https://{HOST}"
        done = fetch(f"hf://org/rows/{path}", secret={"HF_ENDPOINT": the_hub.url, **in_a_pod(state)})
    assert done.code == 0, done.output
    assert [json.loads(line) for line in done.rows().splitlines()] == [ROW] * 1000
    assert set(state.asked) == {HOST}
