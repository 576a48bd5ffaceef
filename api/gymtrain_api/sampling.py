"""The distribution that a run samples from: always the whole vocabulary at `trainer.config.temperature`.

The trainer computes log-probabilities as the softmax over all logits, divided by the temperature (TRL 1.16). Anything
else that changes the distribution in vLLM (a truncation, a penalty) changes only vLLM's log-probabilities.
"""

from collections.abc import Mapping

DEFAULT_TEMPERATURE = 1.0  # of TRL's AsyncGRPOConfig, and of vLLM
# vLLM 0.32 raises values between 0 and the first to the first, and refuses values above the second.
TEMPERATURES = (0.01, 2.0)

# Set in each request, because a server may take missing settings from the model's generation_config.json.
NEUTRAL: Mapping[str, float] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def in_full(temperature: float) -> dict[str, float]:
    """All sampling settings for `temperature`, under the names in vLLM's completion and chat completion requests."""
    return {"temperature": temperature, **NEUTRAL}


def temperature_of(config: Mapping[str, object]) -> float:
    """The temperature of `spec.trainer.config`. A value of a wrong type counts as the default; preflight reports it."""
    value = config.get("temperature")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else DEFAULT_TEMPERATURE
