"""The servers of a run, on this machine. They answer as the real ones do, and note what they were asked."""

import contextlib
import http.server
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from gymtrain_api.ledger import LEDGER_PATH, LedgerAnswer, LedgerEntry, LedgerQuestion, token_digest
from gymtrain_api.manifest import PullUpdate
from gymtrain_api.transports import PULL_BACKEND, UPDATE_ROUTES
from gymtrain_api.weight_version import WeightVersion
from gymtrain_api.wiring import SERVED_MODEL_NAME
from gymtrain_conformance.place import ROW_FIELD, agent_of, row
from gymtrain_conformance.pull import PullError, fetch, tell_end
from gymtrain_conformance.record import Lost, Record, Rollout, Update

DEFAULT = "default"  # vLLM's label for the weights that it started with
_RELEASE = "0.32.0"
_CONTROLS = ("/pause", "/resume", "/is_paused", "/weight_info", "/update_weight_version", "/reset_prefix_cache")
_GATEWAY_SECONDS = 3.0  # for which a call waits for a pod that may answer it; the real one has minutes
_ROLLOUT_SECONDS = 0.3  # so that looks at the trainer see its steps

OPEN_POSTS = ("/v1/completions",)  # of vLLM, for whoever has no token

type Answer = tuple[int, Any]
type Ask = Callable[[str, str, dict[str, Any]], Answer]  # method, path, body


class _UnderWay:
    """How many connections are accepted and not ended yet."""

    def __init__(self) -> None:
        self._number = 0
        self._changed = threading.Condition()

    def add(self, number: int) -> None:
        with self._changed:
            self._number += number
            self._changed.notify_all()

    def wait_for_none(self, seconds: float) -> bool:
        """Whether there are none, within these seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._number == 0, max(0.0, seconds))


class Server:
    """Answers by a function, each request in a thread of its own."""

    def __init__(self, bound: socket.socket, ask: Ask, token: str = "", open_posts: Collection[str] = ()) -> None:
        """Listens at once, on a socket that has its address already, and owns it from then on.

        With a `token`, POST needs it on all routes but `open_posts`.
        """

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                data = self.rfile.read(length)
                if len(data) < length:  # the trainer went away, and has asked for nothing yet
                    return
                try:
                    body = json.loads(data or b"{}")
                except ValueError:
                    body = None
                status: int = 400
                answer: Any = "the body isn't a JSON object"
                path = urlsplit(self.path).path
                guarded = token and self.command == "POST" and path not in open_posts
                if guarded and self.headers.get("Authorization") != f"Bearer {token}":
                    status, answer = 401, {"error": "this route asks for the run's token"}
                elif isinstance(body, dict):
                    status, answer = ask(self.command, path, body)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the trainer went away
                    self.wfile.write(text)

            do_GET = do_POST = _answer  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                """Nothing: the record has what matters."""

        class Listening(http.server.ThreadingHTTPServer):
            request_queue_size = 1024  # a step's rollouts come at once, and a full queue resets connections

            def process_request(self, request: Any, client_address: Any) -> None:
                under_way.add(1)
                super().process_request(request, client_address)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    under_way.add(-1)

        self._under_way = under_way = _UnderWay()
        self._address = bound.getsockname()
        self._server = Listening(self._address, Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = bound
        self._server.server_activate()
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def settle(self, seconds: float) -> bool:
        """Waits until what was asked before the call is answered, or its client found to be gone; whether it is.

        Without it, what a process asked for right before its end may be read whenever a thread gets to it.
        """
        deadline = time.monotonic() + seconds
        # Connections are accepted in order: once this one, which asks for nothing, is ended, all before it are counted.
        try:
            with socket.create_connection(self._address, timeout=seconds) as last:
                last.shutdown(socket.SHUT_WR)
                last.recv(1)
        except OSError:
            return False
        return self._under_way.wait_for_none(deadline - time.monotonic())

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True)
class _Open:
    """An update that is under way."""

    asked: str = ""
    problem: str = ""


class Vllm:
    """One vLLM pod, without a model."""

    def __init__(self, record: Record, run: str) -> None:
        self._record = record
        self._run = run
        self._lock = threading.Lock()
        self._fetches: dict[str, threading.Thread] = {}
        self._update: _Open | None = None
        self.label = DEFAULT
        self.paused = False

    @property
    def updating(self) -> bool:
        """Whether an update is open."""
        return self._update is not None

    def holds_weights_of(self, attempt: int) -> bool:
        """Whether the gateway would send it calls in this attempt."""
        version = WeightVersion.parse(self.label)
        return version is not None and version.is_of(self._run, attempt) and not self.paused

    def lose(self, attempt: int) -> bool:
        """It restarts, if it has weights of this attempt and serves them; whether it did."""
        with self._lock:
            if not self.holds_weights_of(attempt):
                return False
            self.label, self.paused, self._update = DEFAULT, False, None
            self._record.add(Lost())
            return True

    def ask(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        """One request."""
        match method, path:
            case "GET", "/health":
                return 200, ""
            case "GET", "/openapi.json":
                return 200, {"paths": {route: {} for route in (*UPDATE_ROUTES, *_CONTROLS)}}
            case "GET", "/server_info":
                config = {
                    "weight_transfer_config": {"backend": PULL_BACKEND},
                    "model_config": {"dtype": "torch.float32", "max_model_len": 1024},
                }
                return 200, {"vllm_config": config, "system_env": {"vllm_version": _RELEASE}}
            case "GET", "/weight_info":
                return 200, {"weight_version": self.label}
            case "GET", "/is_paused":
                return 200, {"is_paused": self.paused}
            case "GET", "/get_world_size":
                return 200, {"world_size": 1}
            case "GET", "/v1/models":
                return 200, {"data": [{"id": SERVED_MODEL_NAME, "max_model_len": 1024}]}
            case "POST", "/v1/completions":
                count = int(body.get("max_tokens") or 1)
                return 200, {"choices": [{"token_ids": [7] * count, "logprobs": {"token_logprobs": [-1.0] * count}}]}
            case "POST", "/pause" | "/resume":
                with self._lock:
                    self.paused = path == "/pause"
                return 200, {}
            case "POST", "/reset_prefix_cache" | "/init_weight_transfer_engine":
                return 200, {}
            case "POST", "/update_weight_version":
                self.label = str(body.get("new_version"))
                return 200, {}
            case "POST", "/start_weight_update":
                return self._start()
            case "POST", "/update_weights":
                return self._load(body)
            case "POST", "/finish_weight_update":
                return self._finish(body)
            case _:
                return 404, {"detail": "Not Found"}

    def _start(self) -> Answer:
        with self._lock:
            if self._update is not None:
                return 500, {"error": "start_weight_update called while a weight update is already active"}
            self._update = _Open()
        return 200, {}

    def _load(self, body: dict[str, Any]) -> Answer:
        if self._update is None:
            return 500, {"error": "start_weight_update must be called before update_weights"}
        try:
            update = PullUpdate.model_validate(body.get("update_info"))
        except ValidationError as error:
            return self._refuse(f"update_info isn't a PullUpdate: {error}")
        if update.step == "fetch":
            self._begin(update)
            return 200, {}
        if early := self._fetches.pop(update.version, None):
            early.join(update.timeout_seconds)
        if not self.paused:
            return self._refuse("the pod wasn't paused when it was told to load")
        try:
            fetch(update)
        except PullError as error:
            return self._refuse(str(error))
        self._update = _Open(update.version)
        return 200, {}

    def _refuse(self, problem: str) -> Answer:
        """As vLLM does: the update is over, and the pod keeps what it had."""
        self._update = None
        self._record.add(Update(self.label, "", problem))
        return 500, {"error": problem}

    def _begin(self, update: PullUpdate) -> None:
        def body() -> None:
            with contextlib.suppress(PullError):  # the load says it
                fetch(update)
            tell_end(update)

        self._fetches[update.version] = thread = threading.Thread(target=body, daemon=True)
        thread.start()

    def _finish(self, body: dict[str, Any]) -> Answer:
        with self._lock:
            update, self._update = self._update, None
            if update is None:
                return 500, {"error": "finish_weight_update called without a matching start_weight_update"}
            if label := body.get("weight_version"):
                self.label = str(label)
            if update.asked or label:  # within the lock: the weights may be lost right after it
                self._record.add(Update(self.label, update.asked))
        return 200, {}


class Gateway:
    """The ledger of one gateway pod: which weights sampled which call."""

    def __init__(self) -> None:
        self._entries: dict[str, LedgerEntry] = {}

    def note(self, prompt_ids: list[int], output_ids: list[int], label: str) -> None:
        """Notes a call."""
        self._entries[token_digest(prompt_ids, output_ids)] = LedgerEntry(versions=[label], finish_reason="stop")

    def ask(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        """One request."""
        if (method, path) != ("POST", LEDGER_PATH):
            return (200, "") if path in {"/health", "/ready"} else (404, {"detail": "Not Found"})
        try:
            question = LedgerQuestion.model_validate(body)
        except ValidationError as error:
            return 400, str(error)
        found = {digest: self._entries[digest] for digest in question.digests if digest in self._entries}
        return 200, LedgerAnswer(entries=found).model_dump(mode="json")


class Agents:
    """The Gym agents: they answer with a made-up conversation, once vLLM may be asked."""

    def __init__(self, record: Record, vllm: Vllm, gateway: Gateway, *, syncs: bool) -> None:
        """`syncs`: whether weights are sent at all."""
        self._record = record
        self._vllm = vllm
        self._gateway = gateway
        self.syncs = syncs
        self._numbers = itertools.count()
        self._open = 0
        self._lock = threading.Lock()
        self.attempt = 0
        self.fail_next = False
        self.answered = 0

    def of(self, name: str) -> Ask:
        """The server of one agent."""

        def ask(method: str, path: str, body: dict[str, Any]) -> Answer:
            if (method, path) == ("POST", "/run"):
                return self._run(name, body)
            return (200, {"status": "ok"}) if (method, path) == ("GET", "/") else (404, {"detail": "Not Found"})

        return ask

    def _run(self, name: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            self._open += 1
            fails, self.fail_next = self.fail_next, False
            asked = body.get("responses_create_params")
            temperature = asked.get("temperature") if isinstance(asked, dict) else None
            self._record.add(Rollout(_problem(name, body), temperature, self._vllm.label, self._open, fails))
        try:
            return self._answer(fails=fails)
        finally:
            with self._lock:
                self._open -= 1

    def _answer(self, *, fails: bool) -> Answer:
        time.sleep(_ROLLOUT_SECONDS)
        if fails:
            return 500, "Hit an exception in first_agent calling an inner server: b'gone'"
        deadline = time.monotonic() + _GATEWAY_SECONDS
        while self.syncs and not self._vllm.holds_weights_of(self.attempt):
            if time.monotonic() > deadline:
                return 503, "no vLLM pod holds the run's weights"
            time.sleep(0.02)
        number = next(self._numbers)
        prompt, output = [1, 2, 3], [4 + number % 40, 4 + number // 40 % 40, 5]
        self._gateway.note(prompt, output, self._vllm.label)
        with self._lock:
            self.answered += 1
        item = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "8"}],
            "prompt_token_ids": prompt,
            "generation_token_ids": output,
            "generation_log_probs": [-0.5] * len(output),
        }
        return 200, {"reward": float(number % 2), "response": {"output": [item], "incomplete_details": None}}


def _problem(name: str, body: dict[str, Any]) -> str:
    """What is wrong with a rollout's body."""
    number = body.get(ROW_FIELD)
    if not isinstance(number, int):
        return f"{ROW_FIELD}, a field of the row beside responses_create_params, is missing"
    expected = row(number)
    if agent_of(expected) != name:
        return f"row {number} went to {name}, its agent is {agent_of(expected)}"
    changed = [field for field in expected if field != "responses_create_params" and body.get(field) != expected[field]]
    asked = body.get("responses_create_params")
    if not isinstance(asked, dict) or asked.get("input") != expected["responses_create_params"]["input"]:
        changed.append("responses_create_params.input")
    return f"row {number} came without or with another {', '.join(changed)}" if changed else ""
