"""The distribution that a run samples from: the whole vocabulary at `trainer.config.temperature`, and nothing else.

The trainer computes log-probabilities as the softmax over all logits, divided by the temperature (TRL 1.16). Whatever
else changes the distribution in vLLM (a truncation, a penalty) changes vLLM's log-probabilities and not the trainer's.
"""

from collections.abc import Mapping

DEFAULT_TEMPERATURE = 1.0  # of TRL's AsyncGRPOConfig, and of vLLM
TEMPERATURES = (0.01, 2.0)  # vLLM 0.32 takes what is above 0 and below the first for the first, and refuses more

# Named in each request: what a request leaves out, a server may fill in from the model's generation_config.json.
NEUTRAL: Mapping[str, float] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def in_full(temperature: float) -> dict[str, float]:
    """Sampling at `temperature`, by the names that vLLM's completion and chat completion requests have."""
    return {"temperature": temperature, **NEUTRAL}


def temperature_of(config: Mapping[str, object]) -> float:
    """The temperature of `spec.trainer.config`; a value of a wrong type counts as the default: preflight reports it."""
    value = config.get("temperature")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else DEFAULT_TEMPERATURE
