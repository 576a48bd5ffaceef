"""The distribution that a run samples from: always the whole vocabulary at `trainer.config.temperature`.

The trainer computes log-probabilities as the softmax over all logits, divided by the temperature (TRL 1.16). Anything
else that changes the distribution in vLLM (a truncation, a penalty) changes only vLLM's log-probabilities.
"""

import math
from collections.abc import Mapping

from gymtrain_api.spec import GymTrainingRunSpec

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


def evaluation_temperature(spec: GymTrainingRunSpec) -> float | None:
    """The temperature of evaluations, where it is another than the run's; else None."""
    evaluation = spec.evaluates
    if evaluation is None or evaluation.temperature is None:
        return None
    temperature = float(evaluation.temperature)
    return None if temperature == temperature_of(spec.trainer.config) else temperature


# What a call for an evaluation asks for in place of the evaluation's own temperature. The gateway sees no other
# difference between calls, and an agent, a model server or a row may ask for a round number of its own.
_MARK = 0.0000314159


def marked(temperature: float) -> float:
    """The temperature that a request for an evaluation at `temperature` carries through agents and model servers."""
    return temperature + (_MARK if temperature < TEMPERATURES[1] / 2 else -_MARK)


def is_marked(asked: object, temperature: float) -> bool:
    """Whether a call asks to be sampled for an evaluation at `temperature`."""
    number = isinstance(asked, int | float) and not isinstance(asked, bool)
    return number and math.isclose(float(str(asked)), marked(temperature), rel_tol=0.0, abs_tol=_MARK / 1000)
