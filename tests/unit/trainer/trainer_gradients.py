"""One of two processes that compute a step: `python -m tests.unit.trainer.trainer_gradients FOLDER MODEL LAYER`.

With torchrun's environment. LAYER is the class of the layers that are sharded; without it the model is replicated.
Computes the step of three micro-batches twice, with the same weights before it: as the trainer does, and with ranks
that exchange gradients after the last micro-batch alone. Rank 0 leaves in FOLDER

| file | |
|---|---|
| NAME-gradients.safetensors | whole gradients after the step |
| NAME-weights.safetensors | whole weights, after AdamW's step with these gradients |
| NAME.json | by micro-batch before which one looks: what each rank holds of gradients, see `_held` |

where NAME is `usual` and `at-the-end`.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.trl.framework import leave_out_vllm

leave_out_vllm()

from gymtrain_trainer.trl.advantages import LossSettings  # noqa: E402 - imports TRL, after vLLM is left out
from gymtrain_trainer.trl.batches import StepLoader, make_step  # noqa: E402 - after vLLM is left out
from gymtrain_trainer.trl.settings import Batch, StepSettings  # noqa: E402 - after vLLM is left out
from gymtrain_trainer.trl.trainer import ELSEWHERE, build_trainer  # noqa: E402 - after vLLM is left out
from tests.unit.trainer.trainer_samples import random_groups  # noqa: E402 - after vLLM is left out

BATCH = Batch(per_device=2, accumulation=3, processes=2, num_generations=4, token_budget=0)


class Worker:
    """What TRL's constructor asks of a rollout worker."""

    rollout_buffer = None


def _step() -> list[Any]:
    """The micro-batches of this rank."""
    made = random_groups(random.Random(3), 6, most=2)
    groups = [
        SampleGroup(number, "adder", tuple(sample.reward for sample in samples), tuple(samples))
        for number, samples in enumerate(made)
    ]
    make = (lambda: make_step(groups, BATCH, LossSettings())[0]) if os.environ["RANK"] == "0" else None
    return next(iter(StepLoader(make, lambda: 0, 2)))["micro_batches"]  # type: ignore[no-any-return]


def _whole(tensor: Any) -> Any:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def _held(model: Any) -> dict[str, Any]:
    """Numbers of gradients that this rank holds exchanged, and not exchanged yet."""
    shares = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    groups: dict[int, Any] = {}  # by id()
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        for group in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]:
            groups[id(group)] = group
    waiting = 0
    for parameter in [parameter for group in groups.values() if group is not None for parameter in group.fsdp_params]:
        # By itself where gradients are exchanged in another type, else at the parameter.
        gradient = parameter.unsharded_accumulated_grad
        whole = getattr(parameter, "_unsharded_param", None)  # from the first gathering on
        gradient = whole.grad if gradient is None and whole is not None else gradient
        waiting += gradient.numel() if gradient is not None else 0
    shares = [share.to_local() if isinstance(share, DTensor) else share for share in shares]
    return {"exchanged": sum(share.numel() for share in shares), "waiting": waiting}


def main() -> None:
    """Computes both."""
    folder, model_folder, layer = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sharding = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": [layer]}} if layer else {}
    if layer:
        sharding["fsdp_config"]["cpu_ram_efficient_loading"] = True  # type: ignore[index]
    arguments = {
        "max_steps": 1,
        "dtype": "float32",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "token_budget": 0,
        "report_to": "none",
        "save_strategy": "no",
        "output_dir": str(folder / "out"),
        **sharding,
    }
    trainer = build_trainer(
        arguments,
        model_folder,
        callbacks=[],
        rollout_worker=Worker(),
        weight_transfer=ELSEWHERE,
        steps=StepSettings(BATCH),
    )
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-2)
    model, _ = trainer.accelerator.prepare(trainer.model, optimizer)
    trainer.model = trainer.model_wrapped = model
    assert isinstance(next(model.parameters()), DTensor) == bool(layer), "it isn't what is to be compared"
    micro_batches, before = _step(), [parameter.detach().clone() for parameter in model.parameters()]
    assert len(micro_batches) == BATCH.accumulation
    compute_loss, is_sharded = trainer.compute_loss, trainer.is_fsdp_enabled
    for name in ("usual", "at-the-end"):
        trainer.is_fsdp_enabled = is_sharded and name == "usual"
        held: list[Any] = []

        def watched(*arguments: Any, held: list[Any] = held, **more: Any) -> Any:
            of_ranks: list[Any] = [None, None]
            torch.distributed.all_gather_object(of_ranks, _held(model))
            held.append(of_ranks)
            return compute_loss(*arguments, **more)

        trainer.compute_loss = watched
        with torch.no_grad():
            for parameter, kept in zip(model.parameters(), before, strict=True):
                parameter.copy_(kept)
                parameter.grad = None
        trainer.training_step(model, {"micro_batches": [dict(one) for one in micro_batches]}, None)
        names = [found.removeprefix("module.") for found, _ in model.named_parameters()]
        gradients = {n: _whole(p.grad) for n, p in zip(names, model.parameters(), strict=True)}
        torch.optim.AdamW(model.parameters(), lr=1e-2).step()
        weights = {n: _whole(p) for n, p in zip(names, model.parameters(), strict=True)}
        if os.environ["RANK"] == "0":
            save_file(gradients, folder / f"{name}-gradients.safetensors")
            save_file(weights, folder / f"{name}-weights.safetensors")
            (folder / f"{name}.json").write_text(json.dumps(held))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of libraries have nothing to save
