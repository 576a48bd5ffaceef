"""`spec.data`: the datasets."""

from typing import Literal

from pydantic import Field

from gymtrain_api.sources import DATA_SOURCE_PATTERN
from gymtrain_api.spec.base import KubernetesObject, Spec


class PromptMessage(Spec):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: str = Field(min_length=1, max_length=16384, description="Text of the turn.")


class ReasoningGymTask(Spec):
    """A dataset that the reasoning_gym package generates."""

    task: str = Field(min_length=1, description="Name of the reasoning_gym dataset, such as chain_sum.")
    size: int = Field(ge=1, le=10_000_000, description="Number of rows.")
    seed: int = Field(0, ge=0, description="Seed of the generator.")
    config: KubernetesObject = Field(
        default_factory=dict, description="Keyword arguments of the task, such as min_digits."
    )
    prompt_prefix: str | None = Field(
        None, max_length=16384, description="Text before each question, in the same turn, such as instructions."
    )
    messages: list[PromptMessage] = Field(
        default_factory=list,
        max_length=32,
        description="Turns before each question, such as a system prompt or worked examples (a question by the user, "
        "its answer by the assistant).",
    )


type DatasetType = Literal["train", "validation", "example", "benchmark"]  # NeMo Gym's


class FromGym(Spec):
    """The datasets that agents of the resolved Gym config list."""

    types: list[DatasetType] | None = Field(
        None, min_length=1, max_length=4, description="Types of the datasets. Default: [train]."
    )
    agents: list[str] | None = Field(
        None, min_length=1, max_length=64, description="Agent servers whose datasets are used. Default: all."
    )


class Dataset(Spec):
    """One dataset, with exactly one of source, reasoningGym and fromGym. fromGym may be several files."""

    source: str | None = Field(
        None,
        pattern=DATA_SOURCE_PATTERN,
        max_length=512,
        description="JSONL file: pvc://CLAIM/PATH, configmap://NAME/KEY, or gym://PATH in the Gym image.",
    )
    reasoning_gym: ReasoningGymTask | None = Field(None, description="Dataset that reasoning_gym generates.")
    from_gym: FromGym | None = Field(
        None,
        description="Datasets that the Gym config lists (its agents' `datasets`). Their rows without agent_ref go to "
        "the agent that lists them.",
    )
    weight: int = Field(
        1,
        ge=1,
        le=1000,
        description="How often this dataset is drawn from, relative to the others. With fromGym, each file has this "
        "weight, times its num_repeats.",
    )
    agent: str | None = Field(
        None,
        min_length=1,
        description="Agent server for rows without agent_ref. Optional if the config has one agent, or if one agent "
        "lists this file.",
    )


class Data(Spec):
    """The datasets of the run."""

    train: list[Dataset] = Field(
        default_factory=lambda: [Dataset.model_validate({"fromGym": {}})],
        min_length=1,
        max_length=64,
        description="Datasets to train on. Default: the train datasets that the Gym config lists.",
    )
