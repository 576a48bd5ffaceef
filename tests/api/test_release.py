"""The chart of a release, by the helm that is pinned: packaged, rendered, pushed to a registry."""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from dev.release import chart, images
from tests.support.apiserver import ApiServer, binary
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.shown import of_page, shell_of

DIGESTS = {name: f"sha256:{number:064x}" for number, name in enumerate(images.ALL)}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The chart, whose images are in a registry."""
    return chart.package(str(binary("helm")), "7.8.9", "r.example.com/team", DIGESTS, tmp_path)


def test_a_packaged_chart_has_the_releases_version(archive: Path) -> None:
    done = subprocess.run([binary("helm"), "show", "chart", str(archive)], capture_output=True, text=True, timeout=60)
    told = yaml.safe_load(done.stdout)
    assert (told["version"], told["appVersion"], archive.name) == ("7.8.9", "7.8.9", "gymtrain-7.8.9.tgz")


def test_a_packaged_chart_installs_without_a_value_and_by_digest_alone(archive: Path) -> None:
    argv = [binary("helm"), "template", "gymtrain", str(archive), "--kube-version", "1.34"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    named = set(re.findall(r"r\.example\.com/team/gymtrain/[^\s\"']+", done.stdout))
    assert {re.sub(r".*/", "", name) for name in named} == {
        f"{name}@{DIGESTS[name]}" for name in (*images.OF_THE_CHART, *images.FOR_GPUS)
    }
    assert not re.search(r"gymtrain/[a-z-]+:\d", done.stdout)


class Registry(BaseHTTPRequestHandler):
    """As much of the OCI distribution protocol as a push and a pull take."""

    blobs: dict[str, bytes] = {}  # noqa: RUF012
    manifests: dict[str, bytes] = {}  # noqa: RUF012
    pushed: list[str] = []  # noqa: RUF012

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": "0", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_GET(self) -> None:
        self._look(with_content=True)

    def do_HEAD(self) -> None:
        self._look(with_content=False)

    def _look(self, *, with_content: bool) -> None:
        name = self.path.rpartition("/")[2]
        content = self.manifests.get(name, self.blobs.get(name))
        if content is None:
            self._answer(200 if self.path == "/v2/" else 404)
            return
        kind = "application/vnd.oci.image.manifest.v1+json"
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._answer(200, Content_Length=str(len(content)), Content_Type=kind, Docker_Content_Digest=digest)
        if with_content:
            self.wfile.write(content)

    def do_POST(self) -> None:
        self._answer(202, Location=f"{self.path.rstrip('/')}/1")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        path = urlsplit(self.path)
        if "/manifests/" in path.path:
            self.manifests[path.path.rpartition("/")[2]] = self.manifests[digest] = content
            self.pushed.append(path.path)
        else:
            assert parse_qs(path.query)["digest"] == [digest]
            self.blobs[digest] = content
        self._answer(201, Docker_Content_Digest=digest, Location=path.path)


@pytest.fixture
def registry() -> Iterator[str]:
    """HOST:PORT of a registry without TLS."""
    Registry.blobs, Registry.manifests, Registry.pushed = {}, {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_pushed_chart_is_known_by_the_digest_that_the_registry_has(archive: Path, registry: str) -> None:
    digest = chart.push(str(binary("helm")), archive, f"{registry}/team", plain_http=True)
    assert "/v2/team/charts/gymtrain/manifests/7.8.9" in Registry.pushed
    manifest = Registry.manifests["7.8.9"]
    assert digest == f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    layers = yaml.safe_load(manifest)["layers"]
    assert f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}" in [layer["digest"] for layer in layers]


def test_a_pushed_chart_is_installed_as_the_page_says_with_pods_of_the_releases_image(
    archive: Path, registry: str, bare: ApiServer, tmp_path: Path
) -> None:
    digest = chart.push(str(binary("helm")), archive, f"{registry}/team", plain_http=True)
    shell = shell_of(bare.kubeconfig, tmp_path)
    install, ask = of_page("docs/releases.md", "helm install gymtrain", "kubectl get pods").splitlines()
    install = install.replace("registry.example.com", registry).replace("0.2.0", "7.8.9")
    assert shell(f"{install} --plain-http 2>&1").splitlines()[1] == f"Digest: {digest}"
    kubectl = Kubectl(str(bare.kubeconfig), "gymtrain-system", binary("kubectl"))
    eventually(lambda: kubectl.list("pods"), "the Deployment makes its pod", PATIENCE)
    assert shell(ask) == f"r.example.com/team/gymtrain/operator@{DIGESTS['operator']}\n"
