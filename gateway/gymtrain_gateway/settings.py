"""What the gateway takes from the run, and the limits of its memory."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gymtrain_api.runs import parse_run_config
from gymtrain_api.sampling import evaluation_temperature, temperature_of
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.transports import may_send_adapters, syncs_weights
from gymtrain_api.wiring import RunConfig
from gymtrain_gateway import environment
from gymtrain_gateway.errors import StartError
from gymtrain_gateway.ledger import LedgerLimits
from gymtrain_gateway.pod_choice import Rules

BODY_BYTES = 64 * 1024 * 1024  # of one request: a long conversation carries each turn's token ids
LEDGER_CALLS = 131_072  # at least; 25 MiB, if so many are open
LEDGER_CALLS_PER_ROLLOUT = 512  # twice what agents with many turns make: 250 steps, and a try that failed
PROMPT_TOKENS = 4_194_304  # of recent prompts kept for /tokenize: 16 MiB
_TRL_GENERATIONS = 8  # TRL's default of num_generations
_PAUSE_SECONDS = 30.0  # between two tries of the trainer, at most
_QUESTION_SECONDS = 120.0  # in which the trainer asks the ledger
TRIES = 3  # of one call, over all pods: few, for a call may be what kills them


@dataclass(frozen=True)
class Settings:
    """One gateway pod."""

    pods_host: str
    pods_port: int
    trainer_host: str
    trainer_port: int
    port: int
    rules: Rules
    timeout_seconds: float  # of one call, waiting included
    max_in_flight: int  # calls that this gateway pod gives one vLLM pod at once
    rollouts: int  # that the trainer keeps open at once
    temperature: float  # at which the policy is sampled
    ledger: LedgerLimits
    evaluation_temperature: float | None = None  # that evaluations are sampled at, where it is another
    namespace: str = ""  # of the run


def from_run(run: RunConfig) -> Settings:
    """The settings of each gateway pod of `run`."""
    spec = run.spec
    return Settings(
        pods_host=run.inference_pods_host,
        pods_port=environment.inference_port(),
        trainer_host=run.trainer_host,
        trainer_port=environment.trainer_port(),
        port=environment.port(),
        rules=Rules(
            run=run.name,
            max_staleness=spec.rollout.max_staleness,
            synced=syncs_weights(spec),
            adapters=may_send_adapters(spec),
        ),
        timeout_seconds=spec.gateway.timeout_seconds,
        # The gateway pods know nothing of each other, so each has its share of what a vLLM pod may have.
        max_in_flight=-(-spec.gateway.max_in_flight // spec.gateway.replicas),
        rollouts=_rollouts_at_once(spec),
        temperature=temperature_of(spec.trainer.config),
        evaluation_temperature=evaluation_temperature(spec),
        ledger=ledger_limits(spec),
        namespace=run.namespace,
    )


def _rollouts_at_once(spec: GymTrainingRunSpec) -> int:
    """That the trainer keeps open, for training and for an evaluation beside it."""
    evaluation, training = spec.evaluates, spec.rollout.max_concurrent
    return training + (evaluation.max_concurrent or training if evaluation is not None else 0)


def ledger_limits(spec: GymTrainingRunSpec) -> LedgerLimits:
    """What the ledger of one pod keeps. Not shared between the pods: connections, and so calls, spread unevenly.

    The time is that of the slowest group: each rollout of it needs all its tries, and waits for a slot before each one.
    """
    rollout = spec.rollout
    one_try = rollout.timeout_seconds + (2 * rollout.verify_timeout_seconds if rollout.mode == "Verify" else 0)
    generations = spec.trainer.config.get("num_generations")
    generations = generations if isinstance(generations, int) else _TRL_GENERATIONS
    waits = -(-generations // rollout.max_concurrent)  # a group is begun whole, where a slot is free
    return LedgerLimits(
        calls=max(LEDGER_CALLS, LEDGER_CALLS_PER_ROLLOUT * _rollouts_at_once(spec)),
        seconds=rollout.max_attempts * ((1 + waits) * one_try + _PAUSE_SECONDS) + _QUESTION_SECONDS,
    )


def read(path: Path) -> Settings:
    """Reads run.json.

    Raises:
        StartError: the file is missing or is no RunConfig.
    """
    try:
        return from_run(parse_run_config(path.read_bytes()))
    except OSError as error:
        raise StartError(f"can't read the run's settings: {error}") from error
    except ValidationError as error:
        raise StartError(f"{path} isn't a run.json of this release: {error}") from error
