"""`gymtrain init`: a GymTrainingRun to begin with, as YAML with comments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = re.compile(r"[^a-z0-9]+")
_NAME_LENGTH = 40

# vLLM's parser of the tool calls that a family of models writes, by a part of the model's name; the first that fits.
# The names are those of vLLM 0.32 (vllm/tool_parsers). Preflight asks vLLM itself.
_PARSERS = (
    (r"qwen3[-_.]?coder", "qwen3_coder"),
    (r"qwen", "hermes"),
    (r"hermes", "hermes"),
    (r"llama-?4", "llama4_pythonic"),
    (r"llama-?3", "llama3_json"),
    (r"mi[ns]tral|magistral|devstral", "mistral"),
    (r"deepseek-v3\.2", "deepseek_v32"),
    (r"deepseek-v3\.1", "deepseek_v31"),
    (r"deepseek-v3", "deepseek_v3"),
    (r"glm-4\.7", "glm47"),
    (r"glm-4", "glm45"),
    (r"gpt-oss", "openai"),
    (r"gemma-?4", "gemma4"),
    (r"granite-4", "granite4"),
    (r"granite", "granite"),
    (r"kimi-k2", "kimi_k2"),
    (r"minimax-m2", "minimax_m2"),
    (r"phi-4-mini", "phi4_mini_json"),
    (r"olmo-?3", "olmo3"),
    (r"seed-oss", "seed_oss"),
)


@dataclass(frozen=True)
class Wanted:
    """What the run is to be.

    Attributes:
        configs: paths of Gym configs in the Gym image, or on a volume.
        model: source of the model, as spec.model.source has it.
        gpus: of vLLM, and of the trainer.
        tools: the environments call tools.
    """

    configs: Sequence[str]
    model: str
    name: str | None = None
    gpus: int = 1
    tools: bool = True


def tool_parser(model: str) -> str | None:
    """vLLM's parser for the model's tool calls; None where its name tells none."""
    return next((parser for pattern, parser in _PARSERS if re.search(pattern, model, re.IGNORECASE)), None)


def run_name(wanted: Wanted) -> str:
    """The name that was given, or that of the first config's file."""
    last = wanted.configs[0].rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return wanted.name or _NAME.sub("-", last.lower()).strip("-")[:_NAME_LENGTH].strip("-") or "run"


def manifest(wanted: Wanted) -> str:
    """The YAML. Texts are quoted as JSON has them, which YAML reads."""
    import json

    name = run_name(wanted)
    configs = "".join(f"\n      - {json.dumps(path)}" for path in wanted.configs)
    return _TEMPLATE.format(
        name=name,
        configs=configs,
        model=json.dumps(wanted.model),
        storage=_STORAGE if wanted.model.startswith("hf://") else "",
        gpus=wanted.gpus,
        processes=max(1, wanted.gpus),
        tools=_tool_arguments(wanted),
        sharded="\n      fsdp: true # shards the model over the processes" if wanted.gpus > 1 else "",
    )


def _tool_arguments(wanted: Wanted) -> str:
    if not wanted.tools:
        return ""
    parser = tool_parser(wanted.model)
    if parser is None:
        return (
            "\n      # The model's name tells no parser of its tool calls: choose one of vLLM's, and remove the hashes."
            "\n      # - --enable-auto-tool-choice\n      # - --tool-call-parser=PARSER"
        )
    return (
        "\n      - --enable-auto-tool-choice # without these two, vLLM returns tool calls as plain text"
        f"\n      - --tool-call-parser={parser}"
    )


_STORAGE = """
    storage: {size: 50Gi} # fetched once, for all pods; without it, each pod fetches the model itself"""

_TEMPLATE = """\
# Check it:  gymtrain validate -f FILE
# Run it:    kubectl apply -f FILE && gymtrain watch {name}
# All fields: kubectl explain gtr.spec --recursive
apiVersion: gymtrain.dev/v1alpha1
kind: GymTrainingRun
metadata:
  name: {name}
spec:
  model:
    source: {model}{storage}

  gym:
    configPaths:{configs}

  data:
    train:
      - fromGym: {{types: [train]}} # the datasets that the config lists. `example` has a few rows, in the image
    # Evaluated while the run trains, and the best checkpoint is kept:
    # validation:
    #   - fromGym: {{types: [validation]}}
    # storage: {{size: 10Gi}} # where datasets of a hub or a bucket are fetched to

  inference:
    gpus: {gpus} # of each vLLM server
    replicas: 1
    args:
      - --max-model-len=16384 # prompt and answers of a rollout{tools}

  trainer:
    gpus: {gpus}
    processesPerNode: {processes}
    config: # TRL's own names (AsyncGRPOConfig)
      learning_rate: 1.0e-6
      max_steps: 200
      num_generations: 8 # rollouts of a task, which are compared with each other
      per_device_train_batch_size: 4
      gradient_accumulation_steps: 8
      gradient_checkpointing: true
      max_completion_length: 2048 # tokens that the model writes in a call
      save_steps: 20
      report_to: [tensorboard] # wandb, trackio and mlflow take their keys from trainer.env{sharded}
    checkpoint:
      size: 200Gi # {name}-checkpoints; it stays with the final model when the run is deleted (retain: Keep)
    records:
      samples: Sampled # what steps trained on, to read

  rollout:
    maxConcurrent: 128
    timeoutSeconds: 900 # of one rollout, with all of its calls
    maxStaleness: 4 # weight versions that a sample may be old; 0 is on-policy

  backoffLimit: 3
"""
