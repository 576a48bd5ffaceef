"""The weights of the last versions, on the CPU, and the log-probabilities that each of them gives."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any


class KeptWeights:
    """Copies what is sent to vLLM, version by version. Needs the size of the model in float32 for each."""

    def __init__(self, keep: int) -> None:
        """`keep`: how many versions."""
        self._keep = keep
        self._versions: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._model: Any = None
        self._loaded: int | None = None

    def watch(
        self, version: int, stream: Iterator[tuple[str, Any]], dtype: str | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Passes the stream of one version on, and keeps a copy of what vLLM will have.

        `dtype` is what floating-point tensors are cast to on their way. It matters: a step of 1e-5 moves few weights of
        a bfloat16 checkpoint to their next value in bfloat16, so vLLM has nearly the weights of the version before.
        """
        import torch

        cast = getattr(torch, dtype) if dtype else None
        tensors = {}
        for name, tensor in stream:
            value = tensor.detach()
            if cast is not None and value.is_floating_point():
                value = value.to(cast)
            tensors[name] = value.to("cpu", torch.float32, copy=True)
            yield name, tensor
        self._versions[version] = tensors
        while len(self._versions) > self._keep:
            self._versions.popitem(last=False)

    def versions(self) -> list[int]:
        """What is kept, oldest first."""
        return list(self._versions)

    def tensors(self, version: int) -> Mapping[str, Any]:
        """The weights of a version that is kept, on the CPU, as float32."""
        return self._versions[version]

    def log_probs(self, config: Any, version: int, ids: Sequence[int], temperature: float) -> list[float]:
        """Log-probability of each token after the first, given those before it.

        Args:
            config: transformers' configuration of the model.
            version: one that is kept.
            ids: the tokens.
            temperature: of the sampling.

        Raises:
            ValueError: what was sent isn't the whole model (a part of it is frozen).
        """
        import torch

        model = self._with(config, version)
        row = torch.tensor([list(ids)])
        with torch.no_grad():
            logits = model(input_ids=row, use_cache=False).logits[0, :-1].float() / temperature
        scores = logits.log_softmax(-1).gather(-1, row[0, 1:, None])
        return [float(score) for score in scores[:, 0]]

    def _with(self, config: Any, version: int) -> Any:
        """The model with the weights of a version."""
        import torch
        from transformers import AutoModelForCausalLM

        if self._model is None:
            with torch.device("cpu"):  # of a copy: training has put its own attention into the configuration
                made = AutoModelForCausalLM.from_config(
                    deepcopy(config), dtype=torch.float32, attn_implementation="sdpa"
                )
            self._model = made.eval()
        if self._loaded != version:
            tensors = self._versions[version]
            missing = [name for name, _ in self._model.named_parameters() if name not in tensors]
            if missing:
                raise ValueError(f"{len(missing)} parameters are not among what was sent, the first: {missing[0]}")
            self._model.load_state_dict(tensors, strict=False, assign=True)
            self._model.tie_weights()
            self._loaded = version
        return self._model
