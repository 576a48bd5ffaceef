"""Checks of `spec.model.lora` before anything starts: peft's LoraConfig, and what vLLM can serve of it."""

import difflib
import json
from collections.abc import Mapping
from typing import Any

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.transports import LORA_RANKS, lora_rank, planned
from gymtrain_api.wiring import Finding
from gymtrain_trainer.trl.settings import lora_arguments

_WHERE = "spec.model.lora"
_FIXED = {
    "task_type": ("CAUSAL_LM",),
    "peft_type": ("LORA",),
    "inference_mode": (False,),
}
# What vLLM's adapters can't carry; the value that is harmless, and why.
_SERVABLE: dict[str, tuple[tuple[Any, ...], str]] = {
    "modules_to_save": ((None, []), "fully trained modules aren't part of an adapter"),
    "use_dora": ((False,), "DoRA's magnitudes have no place in vLLM's adapters"),
    "bias": (("none",), "vLLM's adapters can't contain trained biases"),
    "lora_bias": ((False,), "vLLM's adapters can't contain trained biases"),
    "target_parameters": ((None, []), "adapters of fused experts need a format that vLLM does not detect"),
}
_MERGED = "; set spec.weightSync.transport to NCCL or HTTPFull to send merged weights instead"


def check_lora(spec: GymTrainingRunSpec) -> list[Finding]:
    """All checks, the last by making peft's config. Imports peft only where the run trains an adapter."""
    if spec.model.lora is None:
        return []
    valid = _valid_keys()
    findings = check_keys(spec.model.lora, valid)
    if planned(spec) == "LoRAFilesystem":
        findings += check_servable(spec.model.lora)
    if findings:
        return findings
    from peft import LoraConfig

    try:
        LoraConfig(**(lora_arguments(spec) or {}))
    except Exception as error:
        return [Finding(where=_WHERE, message=f"peft refuses it: {' '.join(str(error).split())[:600]}")]
    return []


def check_keys(lora: Mapping[str, Any], valid: set[str]) -> list[Finding]:
    """Unknown keys with the nearest valid name, and values that other parts decide."""
    findings = []
    for key, value in lora.items():
        if key not in valid:
            near = difflib.get_close_matches(key, sorted(valid), n=1, cutoff=0.6)
            message = "peft's LoraConfig has no such setting" + (f"; did you mean {near[0]}?" if near else "")
        elif key in _FIXED and value not in _FIXED[key]:
            message = f"must be {_FIXED[key][0]} here, got {json.dumps(value)}; leave it out"
        else:
            continue
        findings.append(Finding(where=f"{_WHERE}.{key}", message=message))
    return findings


def check_servable(lora: Mapping[str, Any]) -> list[Finding]:
    """What TRL's trainer can train, and vLLM can't serve as an adapter."""
    findings = [
        Finding(where=f"{_WHERE}.{key}", message=f"{why}{_MERGED}")
        for key, (harmless, why) in _SERVABLE.items()
        if key in lora and lora[key] not in harmless
    ]
    targets = lora.get("target_modules") or []
    targets = [targets] if isinstance(targets, str) else targets
    if any("lm_head" in str(target) or "embed_tokens" in str(target) for target in targets):
        message = f"vLLM's adapters leave out the embeddings and the output head{_MERGED}"
        findings.append(Finding(where=f"{_WHERE}.target_modules", message=message))
    if lora_rank(lora) > LORA_RANKS[-1]:
        message = f"rank {lora_rank(lora)} is more than vLLM serves ({LORA_RANKS[-1]}){_MERGED}"
        findings.append(Finding(where=f"{_WHERE}.r", message=message))
    return findings


def _valid_keys() -> set[str]:
    import dataclasses

    from peft import LoraConfig

    return {field.name for field in dataclasses.fields(LoraConfig) if field.init}
