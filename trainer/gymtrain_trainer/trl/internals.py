"""What we use of TRL, and of the libraries under it, that they don't promise: every such name, and nothing else.

Functions import inside, so that the table can be read without torch. TRL's `trl.experimental` promises nothing as a
whole; what it exports (AsyncGRPOTrainer, AsyncGRPOConfig) and the protocols that its constructor documents
(RolloutWorkerProtocol, WeightTransferProtocol) count as public here.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gymtrain_trainer.internals import Internal

log = logging.getLogger(__name__)

_TRAINER = "trl.experimental.async_grpo.async_grpo_trainer"

INTERNALS = (
    Internal(
        f"{_TRAINER}:_iter_vllm_named_params",
        "TRL 1.16",
        "the names under which parameters go to a weight transfer, before the first sync",
        "a method of the trainer that names what it will send",
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._streaming_iter",
        "TRL 1.16",
        "replaced: it gathers each tensor of a sharded model by itself, in float32",
        "an argument of the constructor that makes the stream of weights",
    ),
    Internal(
        f"{_TRAINER}:get_peak_flops_per_device",
        "TRL 1.16",
        "replaced on a CPU while the trainer is made: it asks CUDA for the device's name, whatever the device",
        "a setting that switches the MFU metrics off",
    ),
    Internal(
        f"{_TRAINER}:compute_flops_per_token",
        "TRL 1.16",
        "replaced where it raises for the model that is trained, as for GLM-4 MoE: TRL calls it at each step's end",
        "MFU metrics that are left out where the operations of a model aren't known",
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._peak_flops_per_device",
        "TRL 1.16",
        "set to None in that case, which leaves the MFU metrics out",
        "the same",
        on_instance=True,
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._lora_sync",
        "TRL 1.16",
        "set: adapters are saved by all ranks together, which TRL chooses by itself only for a vLLM server of its own",
        "an argument of the constructor that chooses the way of an adapter",
        on_instance=True,
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._lora_dir",
        "TRL 1.16",
        "set: the folder that trainer and vLLM pods share",
        "a setting of AsyncGRPOConfig for the folder of adapters",
        on_instance=True,
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer.vllm_client",
        "TRL 1.16",
        "replaced: it is told of each saved adapter",
        "adapters through WeightTransferProtocol",
        on_instance=True,
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._rollout_dataset",
        "TRL 1.16",
        "set: its `wait_s`, the wait for rollouts, goes into TRL's log",
        "a wait that a rollout worker can report by itself",
        on_instance=True,
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._trained_groups",
        "TRL 1.16",
        "set: its length, the groups that were trained, goes into TRL's log",
        "a loader of TRL's that takes whole groups",
        on_instance=True,
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer.compute_loss",
        "TRL 1.16",
        "public by name, but the columns of its inputs (`token_index`, `tree_kv_index`, ...) are TRL's collator's own: "
        "ours are packed by trl/packing.py",
        "a documented format of packed rows",
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._save_checkpoint",
        "TRL 1.16, transformers 5.19",
        "called for a checkpoint on the way out; wrapped, so that on one process a full volume costs one checkpoint, "
        "and that a step isn't overdue while one is written",
        "a public method that saves a checkpoint, and callbacks for one that begins and for one that failed",
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer._load_rng_state",
        "TRL 1.16, transformers 5.19",
        "called where a run resumes: transformers does so only after whole epochs, or where it draws the batches of "
        "before once more, which TRL forbids (`ignore_data_skip`)",
        "random numbers that go on with `ignore_data_skip` too",
    ),
    Internal(
        f"{_TRAINER}:AsyncGRPOTrainer.get_train_dataloader",
        "TRL 1.16",
        "overridden: steps of whole groups, of which none is fetched ahead of the weight sync",
        "a rollout worker that hands out steps",
    ),
    Internal(
        f"{_TRAINER}:validate_lora_for_vllm_sync",
        "TRL 1.16",
        "what TRL itself refuses of an adapter for vLLM; public by name, in a module that isn't exported",
        "an export",
    ),
    Internal(
        "trl.experimental.async_grpo.packing:TREE_ATTENTION",
        "TRL 1.16",
        "the name under which TRL asks transformers for its attention, with arguments `tree_*`: ours takes it where "
        "TRL's kernel is missing",
        "an argument for the attention of the trainer",
    ),
    Internal(
        "transformers.integrations.integration_utils:MLflowCallback._async_log",
        "transformers 5.19",
        "set to False: numbers that MLflow sends in threads of its own get lost without an error",
        "a setting of the callback",
        on_instance=True,
    ),
    Internal(
        "transformers.integrations.flash_attention:get_target_dtype",
        "transformers 5.19",
        "the type in which an attention computes under autocast, as TRL's own attention gets it",
        "an export",
    ),
    Internal(
        "transformers:PreTrainedConfig._attn_implementation",
        "transformers 5.19",
        "plain attention stands in for the packed rows' while log-probabilities of one sequence are computed",
        "set_attn_implementation, once it tells what was set, for the way back",
    ),
    Internal(
        "transformers:PreTrainedModel.from_pretrained",
        "transformers 5.19",
        "replaced while TRL loads the model in its constructor: in preflight it is made of its config alone; where one "
        "rank reads the weights for all, the others make room for their shares",
        "a trainer that takes a model, as other trainers of TRL do",
    ),
    Internal(
        "transformers:PreTrainedModel._from_config",
        "transformers 5.19",
        "makes that model; AutoModel.from_config picks a class by itself instead of TRL's, and calls it too",
        "from_pretrained under torch's meta device, which transformers refuses",
    ),
    Internal(
        "transformers:TrainingArguments.fsdp_plugin_args",
        "transformers 5.19",
        "the arguments of accelerate's FSDP plugin, which preflight asks for the classes to wrap; changed where "
        "accelerate can't send a model's weights from one rank",
        "a plugin that is made also with one process, before the model is loaded",
        on_instance=True,
    ),
    Internal(
        "accelerate.state:AcceleratorState.__init__",
        "accelerate 1.15",
        "replaced while the trainer is made on CPUs: CPUs are on no list of what accelerate shards, though torch does",
        "a list that CPUs are on",
    ),
    Internal(
        "accelerate.state:PartialState._shared_state",
        "accelerate 1.15",
        "where the kind of training is kept for those who ask later",
        "the same",
    ),
)


# --- TRL's trainer ---


def sent_parameters(trainer: Any) -> Iterator[tuple[str, Any]]:
    """The parameters that TRL sends to a weight transfer, under the names that it sends; sharded ones not gathered."""
    from trl.experimental.async_grpo import async_grpo_trainer

    model = trainer.accelerator.unwrap_model(trainer.model)
    found: Iterator[tuple[str, Any]] = async_grpo_trainer._iter_vllm_named_params(model)
    return found


def stream_weights(trainer: Any, stream: Callable[[], Iterator[tuple[str, Any]]]) -> None:
    """Lets `stream` make what a weight transfer is sent, on all ranks, in place of TRL's own way to gather it."""
    trainer._streaming_iter = stream


@contextlib.contextmanager
def no_peak_flops_on_cpu() -> Iterator[None]:
    """While the trainer is made: without a GPU there are no MFU metrics."""
    import torch
    from trl.experimental.async_grpo import async_grpo_trainer

    original = async_grpo_trainer.get_peak_flops_per_device
    if not torch.cuda.is_available():
        async_grpo_trainer.get_peak_flops_per_device = lambda accelerator, dtype: None
    try:
        yield
    finally:
        async_grpo_trainer.get_peak_flops_per_device = original


def leave_out_unknown_mfu(trainer: Any) -> None:
    """Without MFU metrics where TRL can't count what the model computes, in place of an error after the first step."""
    from trl.experimental.async_grpo import async_grpo_trainer

    try:
        async_grpo_trainer.compute_flops_per_token(trainer.model.config.get_text_config(), 1)
    except Exception as error:  # it reads a config by names that are not in all of them
        log.warning("no MFU metrics: TRL can't count the operations of %s: %s", type(trainer.model).__name__, error)
        trainer._peak_flops_per_device = None
        async_grpo_trainer.compute_flops_per_token = lambda config, seq_len: 0


def sync_adapter(trainer: Any) -> None:
    """Lets the trainer sync the adapter alone: all ranks save it, in place of sending merged weights."""
    trainer._lora_sync = True


def publish_adapter(trainer: Any, folder: str, wrap_client: Callable[[Any], Any]) -> None:
    """On rank 0: where adapters are saved, and who is told of each in place of the trainer's vLLM client."""
    trainer._lora_dir = folder
    trainer.vllm_client = wrap_client(trainer.vllm_client)


def check_servable_adapter(model: Any) -> None:
    """Raises ValueError where vLLM can't serve the adapter of `model`."""
    from trl.experimental.async_grpo.async_grpo_trainer import validate_lora_for_vllm_sync

    validate_lora_for_vllm_sync(model)


class GroupAccount(Protocol):
    """What TRL's log takes from whoever makes the steps."""

    wait_s: float  # set to 0 when it is logged
    groups: int


def tell_wait_and_groups(trainer: Any, account: GroupAccount) -> None:
    """Has TRL log how long a step waited for rollouts, and how many groups it had."""

    class Trained:
        def __len__(self) -> int:
            return account.groups

    trainer._rollout_dataset = account
    trainer._trained_groups = Trained()


def save_checkpoint(trainer: Any) -> None:
    """Writes a checkpoint of the last step, outside of TRL's loop."""
    trainer._save_checkpoint(trainer.model, trial=None)


def restore_random_numbers(trainer: Any, checkpoint: str | None) -> None:
    """Lets this rank's random numbers go on where they were when the checkpoint was saved, if it has any of it."""
    trainer._load_rng_state(checkpoint)


def tell_saves(
    trainer: Any, saving: Callable[[], contextlib.AbstractContextManager[None]], on_error: Callable[[Exception], None]
) -> None:
    """From now on checkpoints are written within `saving`, and an error of one goes to `on_error`; where that returns,
    training goes on."""
    save = trainer._save_checkpoint

    def save_or_say(*args: Any, **kwargs: Any) -> None:
        try:
            with saving():
                save(*args, **kwargs)
        except Exception as error:
            on_error(error)

    trainer._save_checkpoint = save_or_say


# --- transformers ---


def log_to_mlflow_at_once(callback: Any) -> None:
    """Has transformers' MLflowCallback wait until a report has arrived."""
    callback._async_log = False


def target_dtype(query: Any, module: Any) -> Any:
    """The type in which autocast wants attention to be computed; None without autocast."""
    from transformers.integrations.flash_attention import get_target_dtype

    return get_target_dtype(query, module)


@contextlib.contextmanager
def plain_attention(model: Any) -> Iterator[None]:
    """The model computes with torch's own attention meanwhile, not with one that is made for packed rows."""
    usual = model.config._attn_implementation
    model.config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        model.config._attn_implementation = usual


@contextlib.contextmanager
def models_on_meta() -> Iterator[None]:
    """`from_pretrained` makes models of their config meanwhile, on torch's meta device."""
    with _loaded_by(lambda usual: _on_meta):
        yield


@contextlib.contextmanager
def models_read_once(sharding: dict[str, Any], *, here: bool) -> Iterator[None]:
    """`from_pretrained` reads weights on one rank alone meanwhile; accelerate then sends them when it shards the model.

    On the others parameters are zeros, which take no memory until they are written. They are no meta tensors, as
    accelerate tells the parameters of an optimizer by their addresses. Buffers that a model computes are as usual.

    Some models are read on each rank. Those with buffers that checkpoints hold: accelerate 1.15 sends all of a state
    dict as shards, which buffers have none of; so it is told not to send. And quantized ones, whose parameters are not
    those that the config makes; accelerate itself decides whether to send these.

    Args:
        sharding: the arguments of accelerate's plugin, of which one is changed where each rank has to read.
        here: this is the rank that reads.
    """

    def once(usual: Callable[..., Any]) -> Callable[..., Any]:
        def load(cls: Any, path: str, /, **arguments: Any) -> Any:
            made = _on_meta(cls, path, **arguments)
            if kept := [name for name, _ in made.named_buffers() if name in made.state_dict()]:
                log.warning("each process reads the weights: accelerate can't send buffers, such as %s", kept[0])
                sharding["cpu_ram_efficient_loading"] = False
                return usual(cls, path, **arguments)
            if here or "quantization_config" in arguments or hasattr(made.config, "quantization_config"):
                return usual(cls, path, **arguments)
            state = {name: _unwritten_zeros(parameter) for name, parameter in made.named_parameters()}
            model = usual(cls, None, config=made.config, state_dict=state, **arguments)
            model.config.name_or_path = path
            return model

        return load

    with _loaded_by(once):
        yield


def _unwritten_zeros(like: Any) -> Any:
    """On the CPU. The kernel makes pages of numpy's zeros when they are written; torch writes its zeros at once."""
    import numpy
    import torch

    size = like.numel() * like.element_size()
    return torch.from_numpy(numpy.zeros(max(1, size), dtype=numpy.uint8))[:size].view(like.dtype).view(like.shape)


def _on_meta(
    cls: Any,
    path: str,
    /,
    *,
    dtype: Any = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    device_map: object = None,
    **more: Any,
) -> Any:
    """A model of its config alone."""
    import torch
    from transformers import AutoConfig

    config = more.pop("config", None)
    if config is None:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, **more)
    with torch.device("meta"):
        return cls._from_config(config, dtype=dtype, attn_implementation=attn_implementation)


@contextlib.contextmanager
def _loaded_by(load: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """`from_pretrained` is what `load` makes of the usual one meanwhile; both get the class first."""
    from transformers import PreTrainedModel

    original = PreTrainedModel.__dict__["from_pretrained"]  # as it is: bound to no class
    PreTrainedModel.from_pretrained = classmethod(load(original.__func__))
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = original


def fsdp_arguments(config: Any) -> dict[str, Any] | None:
    """Arguments of accelerate's FSDP plugin for a trainer of this config; None without FSDP."""
    arguments: dict[str, Any] | None = config.fsdp_plugin_args
    return arguments


# --- accelerate ---


@contextlib.contextmanager
def sharded_on_cpus() -> Iterator[None]:
    """accelerate that is set up meanwhile shards a model on CPUs as on GPUs; by itself it would replicate it."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    made = AcceleratorState.__init__

    def init(state: Any, *arguments: Any, fsdp_plugin: Any = None, **more: Any) -> None:
        made(state, *arguments, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None and state.distributed_type == DistributedType.MULTI_CPU:
            if state.mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(state.mixed_precision)
            state.fsdp_plugin = fsdp_plugin
            state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init
    try:
        yield
    finally:
        AcceleratorState.__init__ = made
