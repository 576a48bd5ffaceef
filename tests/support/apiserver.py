"""A real etcd and kube-apiserver of the tests' own: no kubelet, no controllers, gone afterwards.

The binaries are the dev cluster's (`dev/run binaries`). A cluster that happens to run is never used.
"""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

_TOKEN = "tests"  # a server on 127.0.0.1 for seconds
_START_SECONDS = 60  # 3 on an idle machine


class ApiServerError(RuntimeError):
    """A binary is missing or a server didn't come up; the message holds the end of its log."""


def binary(name: str) -> str:
    """Path of a program of the dev cluster.

    Raises:
        ApiServerError: it isn't built.
    """
    found = shutil.which(name, path=f"{_cache() / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ApiServerError(f"{name} is not built: run `dev/run binaries`")
    return found


def document(binaries: str, name: str) -> Path:
    """Path of a document of one of the dev cluster's sets of programs.

    Raises:
        ApiServerError: the set isn't there.
    """
    found = sorted(_cache().glob(f"bin-sets/{binaries}-*/{name}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ApiServerError(f"{name} isn't there: run `dev/run binaries {binaries}`")
    return found[-1]


class Programs:
    """Programs beside an API server of this machine, which end with it; use as a context manager.

    Attributes:
        kubeconfig: with all rights.
    """

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        """`folder`: where they run, and of their logs."""
        self.kubeconfig = kubeconfig
        self._folder = folder
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []  # by name, of which several may have one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _name, process in reversed(self._processes):  # an API server before its etcd: it waits for nothing then
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts one more program (the controller manager, say), stopped with the rest."""
        process = self._launch(name, [binary(name), *arguments])
        self._processes.append((name, process))
        return process

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to one of the programs, such as SIGSTOP to etcd."""
        self._processes[self._place(name)][1].send_signal(number)

    def restart(self, name: str, away_seconds: float = 0.0) -> None:
        """Kills one of the programs, and starts it as it was; wait for `is_ready` after that."""
        place = self._place(name)
        old = self._processes[place][1]
        old.kill()
        old.wait()
        time.sleep(away_seconds)
        assert isinstance(old.args, list)
        self._processes[place] = (name, self._launch(name, old.args))

    def _place(self, name: str) -> int:
        return [one for one, _ in self._processes].index(name)

    def _launch(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                preexec_fn=_die_with_parent,
            )


class ApiServer(Programs):
    """etcd and kube-apiserver in one folder; use as a context manager."""

    def __init__(self, folder: Path, *, audit_policy: Mapping[str, Any] | None = None) -> None:
        """`audit_policy` says what is written to `audit_log`; nothing is without it."""
        super().__init__(folder, folder / "kubeconfig")
        self._audit_policy = audit_policy
        self.audit_log = folder / "audit.log"
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.token = _TOKEN
        self.certificate = folder / "certificates" / "apiserver.crt"
        self.key = folder / "certificates" / "apiserver.key"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        etcd_urls = [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        etcd_urls += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        self.run("etcd", "--data-dir=etcd", "--unsafe-no-fsync", f"--initial-cluster=default={peer}", *etcd_urls)
        key = self._folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = self._folder / "tokens.csv"
        tokens.write_text(f'{_TOKEN},tests,tests,"system:masters"\n')
        audit: list[str] = []
        if self._audit_policy:
            policy = self._folder / "audit-policy.json"  # which is YAML, too
            policy.write_text(json.dumps(self._audit_policy))
            audit = [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        server = self.run(
            "kube-apiserver",
            *audit,
            f"--etcd-servers={client}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--cert-dir=certificates",
            "--service-cluster-ip-range=10.97.0.0/16",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://tests",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",  # its accounts come from a controller
            "--endpoint-reconciler-type=none",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
        )
        self._wait(server)
        self.kubeconfig.write_text(json.dumps(self._kubeconfig(_TOKEN)))

    def start_controllers(self, *more: str) -> None:
        """The real controllers of Deployments, StatefulSets, Jobs, namespaces and garbage collection, and `more`."""
        controllers = ["deployment", "replicaset", "statefulset", "job", "garbage-collector", "namespace"]
        controllers += ["persistentvolumeclaim-protection"]  # takes the finalizer off deleted claims
        controllers += ["resourcequota"]  # a quota without a status admits nothing
        controllers += ["disruption"]  # nor does a disruption budget
        self._start_controllers([*controllers, *more])

    def start_autoscaler(self) -> None:
        """The real controller of HorizontalPodAutoscalers, which looks at each of them every second."""
        self._start_controllers(["horizontal-pod-autoscaler"], "--horizontal-pod-autoscaler-sync-period=1s")

    def _start_controllers(self, controllers: list[str], *flags: str) -> None:
        self.run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(f'{name}-controller' for name in controllers)}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            *flags,
        )

    def kubeconfig_for(self, user: str, token: str, url: str = "") -> Path:
        """A kubeconfig with another token, such as a ServiceAccount's; at `url` is what stands before the server."""
        path = self._folder / f"kubeconfig-{user}"
        path.write_text(json.dumps(self._kubeconfig(token, url)))
        return path

    def _kubeconfig(self, token: str, url: str = "") -> dict[str, object]:
        cluster = {
            "server": url or self.url,
            "certificate-authority": str(self.certificate),
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "current-context": "tests",
        }

    def client_tls(self) -> ssl.SSLContext:
        """Trusts this server, by whatever address."""
        trust = ssl.create_default_context(cafile=str(self.certificate))
        trust.check_hostname = False
        return trust

    def server_tls(self) -> ssl.SSLContext:
        """Its own certificate, for what stands in its place or is called by it."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.certificate, self.key)
        return tls

    @property
    def is_ready(self) -> bool:
        """Whether the API server says so."""
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {_TOKEN}"})
        unverified = ssl._create_unverified_context()  # the certificate appears while we wait; kubectl verifies it
        with (
            suppress(OSError),  # urllib's errors are OSErrors
            urllib.request.urlopen(request, timeout=5, context=unverified) as answer,
        ):
            return bool(answer.read() == b"ok")
        return False

    def _wait(self, server: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and server.poll() is None:
            if self.is_ready:
                return
            time.sleep(0.1)
        log = (self._folder / "kube-apiserver.log").read_text(errors="replace")
        raise ApiServerError(f"kube-apiserver isn't ready after {_START_SECONDS} s; its log ends:\n{log[-3000:]}")


def _cache() -> Path:
    return Path(os.environ.get("GYMTRAIN_CACHE") or "~/.cache/gymtrain").expanduser()


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """A killed test run must not leave servers behind: PR_SET_PDEATHSIG."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
