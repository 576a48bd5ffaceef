"""The trainer's half of the wiring contract (docs/own-trainer.md), with Python's standard library, and blake3 where
weights are sent.

    Pod        what the pod says of itself: environment, run.json, folders
    Rollouts   POST /run of the rows' agents
    Weights    versions of the weights: served to vLLM pods, and brought into each of them
    Port       GET /progress, GET /weights/...

Copy it, or take it as a description that runs.
"""

import concurrent.futures
import contextlib
import http.client
import http.server
import json
import os
import signal
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REFUSED = 78  # exit code: no other attempt can help
STOPPED = 143  # exit code of a process that SIGTERM ended
PART_BYTES = 8 << 20
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the run's servers are in the cluster
_ASK_SECONDS = 10.0
_CONTROL_SECONDS = 120.0
_REPAIR_SECONDS = 2.0
_LAST_WORDS = 4096  # bytes that the kubelet keeps of a termination message


class RefusedError(Exception):
    """The run's settings are wrong, and would be in every attempt."""


class StoppedError(Exception):
    """SIGTERM came while the trainer waited."""


@dataclass
class Pod:
    """What this pod is told."""

    run: dict[str, Any]
    attempt: int
    nodes: int
    rank: int
    port: int
    root: Path
    termination_log: Path
    token: str  # for vLLM's control routes; empty where they ask for none
    progress: dict[str, Any] = field(default_factory=lambda: {"phase": "starting"})
    stopping: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def read(cls) -> "Pod":
        """From the environment and run.json; takes over SIGTERM. Raises OSError or ValueError without a run."""
        env = os.environ
        pod = cls(
            run=json.loads(Path(env.get("GYMTRAIN_RUN_CONFIG", "/etc/gymtrain/run/run.json")).read_text()),
            attempt=int(env.get("GYMTRAIN_ATTEMPT", "1")),
            nodes=int(env.get("GYMTRAIN_NODES", "1")),
            rank=int(env.get("JOB_COMPLETION_INDEX", "0")),
            port=int(env.get("GYMTRAIN_TRAINER_PORT", "8080")),
            root=Path(env.get("GYMTRAIN_ROOT", "/gymtrain")),
            termination_log=Path(env.get("GYMTRAIN_TERMINATION_LOG", "/dev/termination-log")),
            token=_token(Path(env.get("GYMTRAIN_RUN_TOKEN_FILE", "/etc/gymtrain/token/token"))),
        )

        # A handler runs amid what the main thread does. There, setting an event that it begins to wait for would hang.
        reading, writing = os.pipe()

        def stop() -> None:
            os.read(reading, 1)
            pod.stopping.set()

        threading.Thread(target=stop, daemon=True).start()
        signal.signal(signal.SIGTERM, lambda number, frame: os.write(writing, b"."))
        return pod

    @property
    def spec(self) -> dict[str, Any]:
        """The run's spec, with all defaults."""
        spec: dict[str, Any] = self.run["spec"]
        return spec

    @property
    def config(self) -> dict[str, Any]:
        """spec.trainer.config: what this trainer makes of it is its own affair, but for the temperature."""
        return dict(self.spec["trainer"].get("config") or {})

    @property
    def temperature(self) -> float:
        """At which the gateway samples, whatever a call asks for."""
        return float(self.config.get("temperature", 1.0))

    @property
    def checkpoints(self) -> Path:
        """The run's folder on the checkpoint volume."""
        return self.root / "checkpoints"

    def report(self, **fields: Any) -> None:
        """Changes what GET /progress says."""
        self.progress = {**self.progress, **fields, "updated_at": time.time()}

    def wait(self, seconds: float) -> None:
        """Waits. Raises StoppedError on SIGTERM."""
        if self.stopping.wait(seconds):
            raise StoppedError

    def say_last(self) -> None:
        """Leaves the progress as the termination message."""
        text = json.dumps(self.progress)
        if len(text.encode()) > _LAST_WORDS:
            text = json.dumps({**self.progress, "message": str(self.progress.get("message"))[:500]})
        with contextlib.suppress(OSError):  # there is no such file outside a pod
            self.termination_log.write_text(text)

    def wait_for_agents(self) -> None:
        """Until every agent answers. Raises TimeoutError after spec.startupDeadlineSeconds."""
        deadline = time.monotonic() + self.spec["startupDeadlineSeconds"]
        for name, url in self.run["agents"].items():
            while _get(f"{url}/") != 200:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"agent {name} at {url} doesn't answer")
                self.wait(0.5)


# --- data and rollouts ---


type Task = tuple[str, dict[str, Any]]  # URL of the agent, and the row


def tasks(pod: Pod) -> list[Task]:
    """All rows of data.train. This doesn't heed the datasets' weights, and keeps all rows in memory."""
    folder = pod.root / "data"
    found: list[Task] = []
    for dataset in json.loads((folder / "index.json").read_text())["train"]:
        offsets = (folder / dataset["offsets_file"]).read_bytes()  # rows + 1 numbers of 8 bytes
        with (folder / dataset["file"]).open("rb") as file:
            for number in range(dataset["rows"]):
                start, end = struct.unpack_from("<2Q", offsets, 8 * number)
                file.seek(start)
                row = json.loads(file.read(end - start))
                agent = (row.get("agent_ref") or {}).get("name") or dataset["default_agent"]
                found.append((pod.run["agents"][agent], row))
    return found


@dataclass(frozen=True)
class Rollout:
    """What training needs of one."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]  # of the completion: 1 where the model sampled
    log_probs: list[float]  # of the completion; 0 where it didn't
    reward: float


class Rollouts:
    """Runs rollouts, at most spec.rollout.maxConcurrent at once, each as often as spec.rollout.maxAttempts."""

    def __init__(self, pod: Pod, max_output_tokens: int | None = None) -> None:
        """`max_output_tokens`: that the model may write in a call; None leaves it to the row and the context."""
        self._pod = pod
        self._most = max_output_tokens
        self._limits = pod.spec["rollout"]
        self._threads = concurrent.futures.ThreadPoolExecutor(self._limits["maxConcurrent"])
        self.failed = 0  # tries

    def run(self, tasks: list[Task]) -> list[Rollout | None]:
        """One rollout of each task; None for one that failed for good. Raises StoppedError on SIGTERM."""
        calls = [self._threads.submit(self._one, url, row) for url, row in tasks]
        while not all(call.done() for call in calls):
            self._pod.wait(0.02)
        return [call.result() for call in calls]

    def _one(self, url: str, row: dict[str, Any]) -> Rollout | None:
        asked = {**row["responses_create_params"], "temperature": self._pod.temperature}
        if self._most is not None:
            asked["max_output_tokens"] = self._most
        for attempt in range(self._limits["maxAttempts"]):
            try:
                answer = _post(f"{url}/run", {**row, "responses_create_params": asked}, self._limits["timeoutSeconds"])
                return _read(answer)
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                self.failed += 1
                print(f"a rollout failed: {url}: {error}", flush=True)
                self._pod.stopping.wait(2.0**attempt)
        return None


def _read(answer: Any) -> Rollout:
    """The tokens and the reward of a rollout. Raises where it has none: made-up ones would train on what never was."""
    if answer.get("mask_sample") or answer.get("_ng_failure_class"):
        raise ValueError("the environment says that its reward isn't a measurement")
    turns = [item for item in answer["response"]["output"] if item.get("generation_token_ids")]
    if not turns:
        raise ValueError("the answer has no token ids")
    prompt = [int(token) for token in turns[0]["prompt_token_ids"]]
    tokens, mask, log_probs = list(prompt), [0] * len(prompt), [0.0] * len(prompt)
    for turn in turns:
        before = [int(token) for token in turn["prompt_token_ids"]]
        if before[: len(tokens)] != tokens:
            break  # a template rewrote the history: what was sampled until then is one sample
        added = before[len(tokens) :]  # tool output, and the template around it
        tokens += added + turn["generation_token_ids"]
        mask += [0] * len(added) + [1] * len(turn["generation_token_ids"])
        log_probs += [0.0] * len(added) + turn["generation_log_probs"]
    start = len(prompt)
    return Rollout(prompt, tokens[start:], mask[start:], log_probs[start:], float(answer["reward"]))


# --- weights ---


@dataclass(frozen=True)
class _Version:
    number: int
    label: str
    manifest: bytes
    files: dict[str, Path]


class Weights:
    """Brings versions of the weights to every vLLM pod, by transport HTTPFull, or sends none (transport None).

    A thread brings the current version to pods that came up without it.
    """

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self.syncs = pod.spec["weightSync"]["transport"] != "None"
        self._seconds = pod.spec["weightSync"]["timeoutSeconds"]
        self._note = pod.checkpoints / ".sync"
        self._number = self._noted_number()
        self._versions: dict[int, _Version] = {}
        self._current: _Version | None = None
        self._held: dict[str, str] = {}
        self._lock = threading.Lock()  # of who changes what pods hold
        if self.syncs:
            threading.Thread(target=self._repair, daemon=True).start()

    def send(self, files: list[Path]) -> str | None:
        """Brings safetensors files to every pod as the next version, and returns its label. They must not change until
        the next has been sent.

        Raises:
            TimeoutError: no pod took them within weightSync.timeoutSeconds.
            StoppedError: SIGTERM.
        """
        if not self.syncs:
            return None
        with self._lock:
            self._number += 1  # never again, even if this fails: some pod may hold what was sent
            self._write_note()
            label = f"{self._pod.run['name']}:{self._pod.attempt}:{self._number}"
            version = _Version(self._number, label, _manifest(label, files), {path.name: path for path in files})
            self._versions[version.number] = version
            for old in sorted(self._versions)[:-2]:
                del self._versions[old]
            deadline = time.monotonic() + max(self._seconds, self._pod.spec["startupDeadlineSeconds"])
            while not self._bring(version):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no vLLM pod took the weights {label}")
                self._pod.wait(1.0)
            self._current = version
        self._pod.report(weight_version=label, transport="HTTPFull", transport_reason="all weights over HTTP")
        return label

    def held(self) -> dict[str, Any]:
        """What GET /weights/held says."""
        return {"version": self._current.label if self._current else None, "pods": dict(self._held)}

    def find(self, number: str, name: str) -> bytes | Path | None:
        """What GET /weights/NUMBER/NAME has."""
        version = self._versions.get(int(number)) if number.isdecimal() else None
        if version is None:
            return None
        return version.manifest if name == "manifest" else version.files.get(name)

    def _bring(self, version: _Version) -> bool:
        """Pushes to all pods; whether each that answers has it, and there is one."""
        pods = self._pods()
        done = {}
        for pod in pods:
            try:
                self._push(pod, version)
                done[pod] = version.label
            except (OSError, http.client.HTTPException) as error:
                refused = isinstance(error, urllib.error.HTTPError)
                print(f"{pod} did not take {version.label}: {error}", flush=True)
                if refused:
                    return False  # it answers, with other weights
        self._held = done
        return bool(done)

    def _push(self, pod: str, version: _Version) -> None:
        """The calls by which a version gets into one pod. It is resumed whatever happens."""
        self._control(f"{pod}/pause?mode=keep&clear_cache=true", {}, _CONTROL_SECONDS)
        try:
            try:
                self._control(f"{pod}/start_weight_update", {"is_checkpoint_format": True}, _CONTROL_SECONDS)
            except urllib.error.HTTPError:  # an update that a killed trainer left open
                self._control(f"{pod}/finish_weight_update", {}, _CONTROL_SECONDS)
                self._control(f"{pod}/start_weight_update", {"is_checkpoint_format": True}, _CONTROL_SECONDS)
            with contextlib.suppress(urllib.error.HTTPError):  # not in every release
                self._control(f"{pod}/reset_prefix_cache?reset_running_requests=true", {}, _CONTROL_SECONDS)
            url = f"http://{own_address()}:{self._pod.port}/weights/{version.number}/manifest"
            update = {"manifest_url": url, "version": version.label, "timeout_seconds": self._seconds, "step": "load"}
            self._control(f"{pod}/update_weights", {"update_info": update}, self._seconds)
            self._control(f"{pod}/finish_weight_update", {"weight_version": version.label}, _CONTROL_SECONDS)
        finally:
            self._control(f"{pod}/resume", {}, _CONTROL_SECONDS)

    def _control(self, url: str, body: dict[str, Any], seconds: float) -> None:
        """A call of a control route, which asks for the run's token. Raises OSError."""
        _post(url, body, seconds, self._pod.token)

    def _repair(self) -> None:
        """Pods that came up, or that were left paused, for ever."""
        while not self._pod.stopping.wait(_REPAIR_SECONDS):
            with self._lock:
                version = self._current
                if version is None:
                    continue
                held = {}
                for pod in self._pods():
                    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
                        label = _ask(f"{pod}/weight_info")["weight_version"]
                        if label != version.label:
                            self._push(pod, version)
                        held[pod] = version.label
                self._held = held

    def _pods(self) -> list[str]:
        """The vLLM pods that DNS knows now: all of them have to be told, so none by a load-balanced name."""
        port = urlsplit(self._pod.run["inference_url"]).port
        try:
            found = socket.getaddrinfo(self._pod.run["inference_pods_host"], port, type=socket.SOCK_STREAM)
        except OSError:
            return []
        hosts = sorted({str(entry[4][0]) for entry in found})
        return [f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}" for host in hosts]

    def _noted_number(self) -> int:
        """The last number that an earlier process of this attempt gave: a suspended run goes on in its attempt."""
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return 0
        return int(note["number"]) if note.get("attempt") == self._pod.attempt else 0

    def _write_note(self) -> None:
        draft = self._note.with_name(".sync.new")
        draft.write_text(json.dumps({"attempt": self._pod.attempt, "number": self._number}))
        draft.rename(self._note)


def _manifest(label: str, files: list[Path]) -> bytes:
    """All lines. A pod reads a part as soon as its line is there: a trainer may also write them one after another."""
    from blake3 import blake3

    lines: list[dict[str, Any]] = [{"version": label, "bytes": sum(path.stat().st_size for path in files)}]
    for path in files:
        size = path.stat().st_size
        with path.open("rb") as file:
            for offset in range(0, size, PART_BYTES):
                data = file.read(PART_BYTES)
                digest = blake3(data).hexdigest()
                lines.append({"name": path.name, "size": size, "offset": offset, "bytes": len(data), "blake3": digest})
    lines.append({"parts": len(lines) - 1})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def own_address() -> str:
    """Of this pod, for vLLM pods. The kubelet writes a pod's name and address into its /etc/hosts."""
    try:
        address = str(socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP)[0][4][0])
    except OSError:
        return "127.0.0.1"
    return f"[{address}]" if ":" in address else address


# --- HTTP ---


def open_port(pod: Pod, weights: Weights) -> None:
    """Serves what operator, gateway and vLLM ask for, in threads of its own."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path).path.strip("/").split("/")
            match parts:
                case ["healthz"]:
                    self._send(200, b"ok\n", "text/plain")
                case ["progress"]:
                    self._send(200, json.dumps(pod.progress).encode(), "application/json")
                case ["weights", "held"]:
                    self._send(200, json.dumps(weights.held()).encode(), "application/json")
                case ["weights", number, name]:
                    found = weights.find(number, name)
                    if isinstance(found, Path):
                        self._send_range(found)
                    elif found is not None:
                        self._send(200, found, "application/x-ndjson")
                    else:
                        self._send(404, b"no such weights\n", "text/plain")
                case _:
                    self._send(404, b"no such route\n", "text/plain")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def _send_range(self, path: Path) -> None:
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            size = path.stat().st_size
            start, end = int(first), min(int(last or size - 1), size - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
            self.send_header("Content-Length", str(end - start + 1))
            self.end_headers()
            with contextlib.suppress(OSError), path.open("rb") as file:
                os.posix_fadvise(file.fileno(), start, end - start + 1, os.POSIX_FADV_SEQUENTIAL)
                self.wfile.flush()
                self.connection.sendfile(file, start, end - start + 1)

        def log_message(self, *_: object) -> None:
            """Nothing: the operator asks every 2 s."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Server(("", pod.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _get(url: str) -> int:
    """The status; 0 where nothing answers."""
    try:
        with _HTTP.open(url, timeout=_ASK_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return 0


def _ask(url: str) -> dict[str, Any]:
    with _HTTP.open(url, timeout=_ASK_SECONDS) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _token(file: Path) -> str:
    """Empty in a run whose vLLM pods ask for none."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def _post(url: str, body: dict[str, Any], seconds: float, token: str = "") -> Any:
    """The JSON of the answer, None where it has none. Raises OSError; of these, HTTPError for a status above 399."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - of run.json
    with _HTTP.open(request, timeout=seconds) as answer:
        text = answer.read()
    try:
        return json.loads(text)
    except ValueError:
        return None


def end_with(pod: Pod, train: Callable[[], None]) -> int:
    """Trains, and returns the exit code that the contract has for how it ended."""
    try:
        train()
    except StoppedError:
        return STOPPED
    except RefusedError as error:
        pod.report(phase="failed", message=str(error))
        pod.say_last()
        return REFUSED
    except Exception as error:
        pod.report(phase="failed", message=f"{type(error).__name__}: {error}")
        pod.say_last()
        raise
    pod.report(phase="complete", message="")
    pod.say_last()
    return 0
