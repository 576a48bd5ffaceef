"""The memory of a training GPU, of its node and of the checkpoint volume.

What TRL 1.16 does with its defaults, read in the sources of TRL, transformers 5.19, accelerate 1.15 and torch 2.13:

- weights are float32. One GPU and DDP compute by autocast, which keeps a bf16 copy of trained weights until forward
  ends; FSDP2 gathers them in bf16, layer by layer;
- gradients are float32; DDP sends them from buckets of the same size. FSDP2 exchanges them after each micro-batch of a
  step, so that each GPU keeps its share (trl/async_grpo.py);
- AdamW has two moments in float32;
- beside an adapter, frozen weights are float32, without gradients and moments;
- log-probabilities are computed in tiles: no logits are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gymtrain_api.transports import TransportName
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.sizing.shapes import FULL, HALF, ModelShape

GIB = 1 << 30
_MOMENTS = 2 * FULL  # AdamW's, of a trained number
_TILE = (4096, 32768)  # tokens and words of which TRL computes log-probabilities at once
# Of which nothing here says more: CUDA and its libraries, NCCL's own buffers; and what lies between the allocator's
# blocks, which grows with the GPU.
_RESERVE, _RESERVE_SHARE = 2 * GIB, 0.05
_PROCESS = 4 * GIB  # of the node's memory: Python, torch and CUDA of one process


@dataclass(frozen=True)
class Adapter:
    """LoRA, of the same rank on all modules.

    Attributes:
        modules: linear layers, by peft's names; without them all that aren't experts.
    """

    rank: int
    modules: tuple[str, ...] | None = None

    def parameters(self, shape: ModelShape) -> int:
        """Numbers in the adapter.

        Raises:
            SettingsError: the shape has no such module.
        """
        linears = shape.linears()
        modules = self.modules if self.modules is not None else tuple(linears)
        if unknown := [name for name in modules if name not in linears]:
            raise SettingsError(f"{', '.join(unknown)}: {shape.name} has these linear layers: {', '.join(linears)}")
        return shape.layers * self.rank * sum(sum(linears[name]) for name in modules)


@dataclass(frozen=True)
class Training:
    """What is trained, and on what.

    Attributes:
        nodes: of training pods, one on each.
        gpus: of each, with one process each.
        gpu_memory: GiB of each GPU.
        length: tokens of the longest sample.
        tokens: of one micro-batch on one GPU, at most; shared prompts count once.
        checkpointing: of gradients.
        sharded: by FSDP2.
        kept_checkpoints: save_total_limit, and the best one where that is kept (spec.evaluation.keepBest).
    """

    shape: ModelShape
    nodes: int = 1
    gpus: int = 1
    gpu_memory: float = 80.0
    length: int = 8192
    tokens: int = 8192
    checkpointing: bool = True
    sharded: bool = False
    adapter: Adapter | None = None
    transport: TransportName = "NCCL"
    kept_checkpoints: int = 2

    @property
    def processes(self) -> int:
        """That train together."""
        return self.nodes * self.gpus

    @cached_property
    def trained(self) -> int:
        """Numbers that are trained."""
        return self.shape.parameters if self.adapter is None else self.adapter.parameters(self.shape)

    @cached_property
    def held(self) -> int:
        """Numbers in the trainer's model."""
        return self.shape.parameters + (self.trained if self.adapter is not None else 0)


@dataclass(frozen=True)
class Part:
    """Bytes of one kind."""

    name: str
    bytes: int
    what: str


@dataclass(frozen=True)
class Needs:
    """Parts of one kind of memory, and how much there is.

    Attributes:
        room: bytes; None where nobody says.
        detail: parts that are in one of `parts` already, or are alternatives to it.
    """

    what: str
    parts: tuple[Part, ...]
    room: int | None = None
    detail: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether there is enough; true where nobody says how much there is."""
        return self.room is None or self.total <= self.room


def gpu(training: Training) -> Needs:
    """The training GPU that takes most: that of rank 0, from which weights are sent."""
    shares = training.processes if training.sharded else 1
    buckets = training.processes > 1 and not training.sharded
    room = int(training.gpu_memory * GIB)
    phases = _phases(training)
    largest = max(phases, key=phases.__getitem__)
    parts = [
        Part("weights", FULL * training.held // shares, "float32"),
        Part(
            "gradients",
            FULL * training.trained // shares * (2 if buckets else 1),
            "float32, and DDP's buckets" if buckets else "float32",
        ),
        Part("optimizer", _MOMENTS * training.trained // shares, "AdamW's two moments, float32"),
        Part("activations", _kept(training), "kept from forward to backward"),
        Part("working memory", phases[largest], f"most at: {largest}"),
    ]
    if training.sharded:
        parts.insert(3, Part("gathered layers", _gathered(training), "whole, in bf16, while they are computed with"))
    if buffers := sync_buffers(training):
        parts.append(Part("sync buffers", buffers, "two messages of the NCCL transport"))
    reserve = _RESERVE + int(_RESERVE_SHARE * room)
    parts.append(Part("reserve", reserve, "CUDA, NCCL, fragmentation: 2 GiB and 5 % of the GPU"))
    return Needs("training GPU", tuple(parts), room, phases)


def _gathered(training: Training) -> int:
    """The layer at hand, the next one and the buffer it arrives in; its gradients, and those that are sent."""
    shape = training.shape
    layers = (3 if training.adapter is not None else 5) * shape.layer_parameters
    return HALF * (layers + (1 if shape.tied else 2) * shape.embedding)


def _kept(training: Training) -> int:
    shape, autocast = training.shape, not training.sharded
    layer = shape.activations(autocast=autocast)
    # The last norm, and what the head gets of it; as of two norms of a layer.
    last = (4 * FULL if autocast else 5 * HALF) * shape.hidden
    if training.checkpointing:
        return training.tokens * (shape.layers * layer.residual + last)
    # Without checkpointing backward also needs the weights as they were computed with.
    weights = HALF * (shape.parameters - shape.embedding) if autocast else 0
    return training.tokens * (shape.layers * layer.saved + last) + weights


def _phases(training: Training) -> dict[str, int]:
    """Bytes beside what is kept, where most of it is needed: only one of them at a time."""
    shape, autocast, tokens = training.shape, not training.sharded, training.tokens
    layer = shape.activations(autocast=autocast)
    whole = training.adapter is None
    layers = shape.layers * shape.layer_parameters
    # Autocast keeps the bf16 copies of trained weights until forward ends; backward makes those of one layer again.
    copies = HALF * layers if autocast and whole and training.checkpointing else 0
    copies_of_layer = HALF * shape.layer_parameters if autocast and training.checkpointing else 0
    tile = HALF * (min(tokens, _TILE[0]) * _TILE[1] + _TILE[1] * shape.hidden)
    # The gradient of the head comes in float32, and is then cast for FSDP. A tied one waits for the embedding's.
    head = (FULL + (0 if autocast else HALF)) * shape.embedding if whole else 0
    waiting = (FULL if autocast else HALF) * shape.embedding if whole and shape.tied else 0
    again = layer.saved if training.checkpointing else 0
    return {
        "forward": copies + max(tokens * layer.forward, tile),
        "log-probabilities": tile + head + tokens * (FULL + (FULL if autocast else HALF)) * shape.hidden,
        "backward of a layer": waiting + copies_of_layer + tokens * (again + layer.backward),
    }


def sync_buffers(training: Training) -> int:
    """Bytes on the GPU of rank 0, from the first sync on."""
    return 2 * training.shape.largest_message if training.transport == "NCCL" else 0


def overlaps(training: Training) -> bool:
    """Whether the NCCL transport would copy the weights, and train on while it sends the copy.

    Its own rule (weights/transports/nccl/transport.py): the copy fits twice into what no step has used, and leaves a
    tenth of the GPU.
    """
    needs, copy = gpu(training), HALF * training.shape.parameters
    room = int(training.gpu_memory * GIB)
    free = room - needs.total
    return training.transport == "NCCL" and copy <= free / 2 and free - copy >= room / 10


def host(training: Training, room: int | None = None) -> Needs:
    """Memory of the node of rank 0, in the trainer's pod.

    Args:
        training: what is trained.
        room: bytes of the pod's limit.
    """
    # Of a sharded model one process reads all of it, and sends the others their shares.
    loading = (1 if training.sharded else training.gpus) * FULL * training.held
    # Each process of a sharded model copies its share of a checkpoint there: of the model, and then of the moments.
    saving = _MOMENTS * training.trained // training.nodes if training.sharded else 0
    parts = (
        Part("processes", training.gpus * _PROCESS, "Python, torch and CUDA: 4 GiB each"),
        Part(
            "model",
            max(loading, saving),
            "loaded in float32 before it goes to the GPU: once if sharded, else by each process",
        ),
    )
    return Needs("node of rank 0", parts, room, {"loading": loading, "saving": saving})


def checkpoints(training: Training, room: int | None = None) -> Needs:
    """The checkpoint volume.

    Args:
        training: what is trained.
        room: bytes of the volume.
    """
    one = (FULL + _MOMENTS) * training.trained
    final = FULL if training.adapter is not None else HALF
    count = training.kept_checkpoints + 1
    parts = (
        Part("checkpoints", count * one, f"{count} x {one / GIB:.1f} GiB: the oldest goes when a new one is written"),
        Part("final model", final * training.trained, "the model's own type; an adapter is float32"),
    )
    return Needs("checkpoint volume", parts, room)


def staged(training: Training) -> int:
    """Bytes of the trainer's scratch disk that HTTPFull takes: the version before, and the one that is written."""
    return 2 * HALF * training.shape.parameters
