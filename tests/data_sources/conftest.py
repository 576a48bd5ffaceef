"""Stores of the kinds that datasets are fetched from: moto for S3, Azurite, a Google Cloud Storage emulator, and a
stand-in of the Hugging Face hub. `make test-data-sources` installs them."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from gymtrain_api.wiring import RunConfig
from tests.support.hub import Hub, hub
from tests.support.specs import smallest_run

collect_ignore_glob = [] if find_spec("moto") and find_spec("nemo_gym") else ["test_*.py"]

ROOT = Path(__file__).parents[2]
START_SECONDS = 60


@dataclass
class Store:
    """A store with one bucket, `rows`.

    Attributes:
        scheme: of its URLs.
        put: writes an object.
        contents: all objects.
        secret: what the Secret of a dataset there would hold.
    """

    scheme: str
    put: Callable[[str, bytes], object]
    contents: Callable[[], dict[str, bytes]]
    secret: dict[str, str]


@dataclass
class Fetched:
    """How fetching ended."""

    code: int
    output: str
    folder: Path
    notes: dict[str, Any] = field(default_factory=dict)

    def rows(self, number: int = 0) -> bytes:
        return (self.folder / f"train-{number}.jsonl").read_bytes()

    def note(self, number: int = 0) -> dict[str, Any]:
        return dict(json.loads((self.folder / f"train-{number}.json").read_bytes()))


type Fetch = Callable[..., Fetched]


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    """Fetches datasets as the preflight pod does: in a process of its own, with the Secret in its environment."""

    def run(*train: dict[str, Any] | str, secret: dict[str, str] | None = None) -> Fetched:
        datasets = [{"source": dataset} if isinstance(dataset, str) else dataset for dataset in train]
        spec = smallest_run(data={"train": datasets, "storage": {"size": "1Gi"}})["spec"]
        folder = tmp_path / "fetched"
        folder.mkdir(exist_ok=True)
        (tmp_path / "run.json").write_text(run_config(spec).model_dump_json(by_alias=True))
        names = [f"train-{number}" for number in range(len(datasets))]
        program = (
            "import sys; from pathlib import Path; from gymtrain_gym import fetch; "
            f"sys.exit(fetch.main({names!r}, Path({str(tmp_path / 'run.json')!r}), Path({str(folder)!r})))"
        )
        parts = os.pathsep.join(str(ROOT / part) for part in ("api", "gym"))
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": parts, "HOME": str(tmp_path), **(secret or {})}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        return Fetched(done.returncode, done.stdout + done.stderr, folder)

    return run


def run_config(spec: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "run",
            "namespace": "default",
            "spec": spec,
            "inference_url": "http://run-inference:8000",
            "inference_pods_host": "run-inference-pods",
            "trainer_host": "run-trainer",
        }
    )


@contextmanager
def process(port: int, *command: str, cwd: Path) -> Iterator[None]:
    """A server that is there once its port answers."""
    log = (cwd / f"{port}.log").open("w+")
    server = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                log.seek(0)
                assert server.poll() is None, log.read()
                assert time.monotonic() < deadline, f"{command[0]} doesn't answer: {log.read()}"
                time.sleep(0.2)
        yield
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:  # it waits for a connection that a client keeps
            server.kill()
            server.wait(10)
        log.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    import boto3

    port = free_port()
    moto = str(Path(sys.executable).with_name("moto_server"))
    url = f"http://127.0.0.1:{port}"
    secret = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": url,
    }
    with process(port, moto, "-H", "127.0.0.1", "-p", str(port), cwd=tmp_path_factory.mktemp("s3")):
        client = boto3.client(
            "s3",
            endpoint_url=url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="eu-central-1",
        )
        client.create_bucket(Bucket="rows", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})

        def contents() -> dict[str, bytes]:
            keys = [one["Key"] for one in client.list_objects_v2(Bucket="rows").get("Contents", [])]
            return {key: client.get_object(Bucket="rows", Key=key)["Body"].read() for key in keys}

        yield Store("s3", lambda key, body: client.put_object(Bucket="rows", Key=key, Body=body), contents, secret)


@pytest.fixture(scope="session")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    from azure.storage.blob import BlobServiceClient

    port = free_port()
    folder = tmp_path_factory.mktemp("az")
    azurite = os.environ.get("GYMTRAIN_AZURITE", "azurite-blob")
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everyone's
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};"
        f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
    )
    arguments = ("--blobPort", str(port), "--location", str(folder), "--skipApiVersionCheck", "--silent")
    with process(port, azurite, *arguments, cwd=folder):
        container = BlobServiceClient.from_connection_string(connection).create_container("rows")
        yield Store(
            "az",
            lambda key, body: container.upload_blob(key, body, overwrite=True),
            lambda: {one: container.download_blob(one).readall() for one in container.list_blob_names()},
            {"AZURE_STORAGE_CONNECTION_STRING": connection},
        )


@pytest.fixture(scope="session")
def gs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    port = free_port()
    folder = tmp_path_factory.mktemp("gs")
    emulator = str(Path(sys.executable).with_name("gcp-storage-emulator"))
    url = f"http://127.0.0.1:{port}"
    arguments = ("start", "--host=127.0.0.1", f"--port={port}", "--in-memory", "--default-bucket=rows")
    with process(port, emulator, *arguments, cwd=folder):
        place = f"{url}/upload/storage/v1/b/rows/o?uploadType=media&name="

        def put(key: str, body: bytes) -> None:
            urlopen(Request(place + quote(key, safe=""), data=body, method="POST")).close()

        def contents() -> dict[str, bytes]:
            objects = f"{url}/storage/v1/b/rows/o"
            with urlopen(objects) as found:
                keys = [one["name"] for one in json.load(found).get("items", [])]
            return {key: urlopen(f"{objects}/{quote(key, safe='')}?alt=media").read() for key in keys}

        yield Store("gs", put, contents, {"STORAGE_EMULATOR_HOST": url})


@pytest.fixture(params=["s3", "gs", "az"])
def store(request: pytest.FixtureRequest) -> Store:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Store)
    return found


@pytest.fixture
def the_hub() -> Iterator[Hub]:
    with hub() as state:
        yield state
