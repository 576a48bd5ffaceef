"""What stands for vLLM and the transport in whole training processes, and one such process. Only `VLLM` needs torch."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from gymtrain_api.transports import TransportName
from gymtrain_trainer import train, weight_sync_setup
from gymtrain_trainer.context import Context
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.serve import HttpServer
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import ChosenTransport, Transport, VllmPod, WeightStore, WeightSync
from gymtrain_trainer.weights.pods.client import UNSYNCED, PodClient
from gymtrain_trainer.weights.transports.transport import Delivered
from tests.support.fake_vllm import free_port
from tests.unit.trainer.test_trainer_entry import context
from tests.unit.trainer.trainer_data import question, write_dataset, write_index

CONFIG = {
    "learning_rate": 1e-2,
    "max_steps": 4,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "save_steps": 2,
    "logging_steps": 1,
    "report_to": "none",
}


_VALIDATION_ROWS = 4  # of each dataset; the first one's numbers begin at 1000, the second one's at 1010


class Pods(Protocol):
    """What the transport brings weights to."""

    url: str  # where one of them answers completions; empty: nothing is compared
    labels: list[str]  # of the versions that came

    def on_pause(self, syncs: int) -> None:
        """A sync begins, after so many."""
        ...

    def load(self, label: str, tensors: dict[str, Any]) -> None:
        """A version comes."""
        ...


class VLLM:
    """What stands for transport and vLLM: holds the weights that it was sent, and samples."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.url = ""
        self.labels: list[str] = []
        self.dtype: str | None = "float32"  # that its weights are said to have
        self._lost = ""
        self._turn = threading.Lock()  # weights change between two tokens, never within one
        self.stale_from: int | None = None  # from this sync on it keeps the old weights and says otherwise
        self.on_pause: Callable[[int], None] = lambda syncs: None  # called with the number of syncs before
        self.repeats = False  # whether a question's members are the same each time, by the same weights
        self._asked: dict[int, int] = {}  # members of each question so far
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")

    def load(self, label: str, tensors: dict[str, Any]) -> None:
        self.labels.append(label)
        if self.stale_from is None or len(self.labels) < self.stale_from:
            arriving = {name: tensor for name, tensor in tensors.items() if not self._lost or self._lost not in name}
            with self._turn:
                self._model.load_state_dict(arriving, strict=False)
                self._model.tie_weights()

    def keep(self, file: Path) -> None:
        """Writes the weights that it has now."""
        from safetensors.torch import save_file

        save_file(dict(self._model.named_parameters()), file)

    def lose(self, part: str) -> None:
        """Tensors with `part` in their names stay random, whatever comes."""
        import torch

        self._lost = part
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                if part in name:
                    parameter.normal_()

    def serve(self) -> None:
        """From now on it answers completions."""
        port = free_port()
        app = web.Application()
        app.add_routes([web.post("/v1/completions", self._complete)])
        HttpServer(lambda: app, port).start()
        self.url = f"http://127.0.0.1:{port}"

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        tokens, log_probs = self._sample(body["prompt"], body["max_tokens"])
        choice = {"token_ids": tokens, "logprobs": {"token_logprobs": log_probs}}
        return web.json_response({"choices": [choice]})

    def _sample(self, prompt: list[int], tokens: int, generator: Any = None) -> tuple[list[int], list[float]]:
        import torch

        output: list[int] = []
        log_probs: list[float] = []
        with torch.no_grad():
            for _ in range(tokens):
                with self._turn:
                    scores = self._model(torch.tensor([prompt + output])).logits[0, -1].log_softmax(-1)
                output.append(int(torch.multinomial(scores.exp(), 1, generator=generator)))
                log_probs.append(float(scores[output[-1]]))
        return output, log_probs

    def _generator(self, number: int) -> Any:
        import torch

        if not self.repeats:
            return None
        member = self._asked[number] = self._asked.get(number, -1) + 1
        return torch.Generator().manual_seed(1000 * number + member)

    def answer(self, row: dict[str, Any], number: int) -> web.Response:
        prompt = [3, 4, 5 + row["number"] % 50]  # a token of its vocabulary
        output, log_probs = self._sample(prompt, 3 + row["number"] % 5, self._generator(row["number"]))
        item = {
            "type": "message",
            "content": [],
            "prompt_token_ids": prompt,
            "generation_token_ids": output,
            "generation_log_probs": log_probs,
        }
        reward = sum(token < 20 for token in output) / len(output)
        return web.json_response({"reward": reward, "response": {"output": [item]}})


async def _one_pod(host: str, port: int) -> list[VllmPod]:
    return [VllmPod("http://vllm")]


class Sending(Transport):
    """Hands the weights over without HTTP."""

    name: TransportName = "HTTPFull"
    mends = False

    def __init__(self, vllm: Pods) -> None:
        self.compares = self.pauses = bool(vllm.url)  # as NCCL does: nothing is asked before the sync is over
        self._vllm = vllm
        self._label = UNSYNCED

    def pause(self) -> None:
        self._vllm.on_pause(len(self._vllm.labels))

    def send(self, number: int, tensors: Iterator[tuple[str, Any]], delivered: Callable[[Delivered], None]) -> None:
        copies = {name: tensor.clone() for name, tensor in tensors}
        self._label = self.fleet.settings.version(number)
        self._vllm.load(self._label, copies)
        delivered(Delivered(pods=[VllmPod(self._vllm.url)] if self._vllm.url else []))

    async def label(self, client: PodClient) -> str:
        return self._label


def make_context(folder: Path, model: Path, agent_url: str, spec: dict[str, Any], **config: Any) -> Context:
    """The context of a process below `folder`, with the files that it reads. `spec`: more than the trainer's config."""
    trainer = {"config": CONFIG | config, "checkpoint": {"claimName": "ck"}} | spec.pop("trainer", {})
    made = context(folder, trainer=trainer, **spec)
    made.paths.data_index.parent.mkdir(parents=True, exist_ok=True)
    if not made.paths.model.exists():
        made.paths.model.symlink_to(model)
    data = made.paths.data_index.parent
    validation = [
        write_dataset(
            data, [question(number) for number in range(start, start + _VALIDATION_ROWS)], name=f"validation-{n}"
        )
        for n, start in enumerate(range(1000, 1000 + 10 * len(made.run.spec.data.validation or ()), 10))
    ]
    write_index(data, write_dataset(data, [question(number) for number in range(40)]), validation=validation)
    run = made.run.model_copy(update={"agents": {"adder": agent_url}})
    return Context(run, made.paths, made.attempt, made.nodes, made.node_rank, made.port)


def run_process(
    made: Context,
    vllm: Pods | None,
    stop: StopSignal,
    patch: Callable[[Any, str, Any], object] = setattr,
    servers: Future[None] | None = None,
) -> ProgressBoard | None:
    """One training process to its end; `vllm` on rank 0 only.

    Args:
        made: its context.
        vllm: what stands for the servers.
        stop: ends it.
        patch: puts the stand-ins in.
        servers: done once they are up; without, they are.
    """
    if vllm is None:
        train.train(made, None, None, stop)
        return None
    if servers is None:
        servers = Future()
        servers.set_result(None)
    patch(train, "start_waiting", lambda context, board: servers)
    chosen = ChosenTransport(Sending(vllm), "a test", vllm.dtype if isinstance(vllm, VLLM) else None)
    patch(
        weight_sync_setup,
        "WeightSync",
        # Over the transport that stands in, whatever would have been chosen.
        lambda settings, choose, **more: WeightSync(settings, lambda: chosen, find=_one_pod, **more),
    )
    board = train.starting_board(made)
    train.train(made, board, WeightStore(made.paths.scratch / "weights"), stop)
    return board
