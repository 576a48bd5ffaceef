"""`spec.data`: the datasets."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from gymtrain_api.sources import DATA_SOURCE_PATTERN
from gymtrain_api.spec.base import SIZE_PATTERN, KubernetesObject, SecretKeyRef, SecretRef, Spec


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
        None,
        min_length=1,
        max_length=4,
        description="Types of the datasets. Default: [train] in data.train and [validation] in data.validation, or "
        "with data.prepare.mode example_validation [example] in both.",
    )
    agents: list[str] | None = Field(
        None, min_length=1, max_length=64, description="Agent servers whose datasets are used. Default: all."
    )


class ValidationDataset(Spec):
    """One dataset, with exactly one of source, reasoningGym and fromGym. fromGym may be several files."""

    source: str | None = Field(
        None,
        pattern=DATA_SOURCE_PATTERN,
        max_length=512,
        description="JSONL file: pvc://CLAIM/PATH, configmap://NAME/KEY, gym://PATH in the Gym image, volume://PATH in "
        "the volume of this dataset, or hf://ORG/NAME[@REVISION]/FILE, s3://BUCKET/KEY, gs://BUCKET/OBJECT or "
        "az://CONTAINER/BLOB, which are fetched to data.storage. hf:// also takes a SPLIT, or CONFIG/SPLIT, instead of "
        "a FILE, and FILEs that the hub's loader reads, such as Parquet.",
    )
    secret: SecretRef | None = Field(
        None,
        description="Secret with the credentials of a source that is fetched. Its keys become environment variables of "
        "the container that fetches, and of no other: HF_TOKEN; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, "
        "AWS_ENDPOINT_URL; GOOGLE_APPLICATION_CREDENTIALS_JSON; AZURE_STORAGE_CONNECTION_STRING, or "
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY. Without it, the source is read without credentials.",
    )
    volume: KubernetesObject | None = Field(
        None,
        description="Volume of a volume:// source, as in a pod but without a name, such as nfs: {server: ..., "
        "path: ...}. It is mounted read-only.",
    )
    reasoning_gym: ReasoningGymTask | None = Field(None, description="Dataset that reasoning_gym generates.")
    from_gym: FromGym | None = Field(
        None,
        description="Datasets that the Gym config lists (its agents' `datasets`). Their rows without agent_ref go to "
        "the agent that lists them.",
    )
    agent: str | None = Field(
        None,
        min_length=1,
        description="Agent server for rows without agent_ref. Optional if the config has one agent, or if one agent "
        "lists this file.",
    )


class DataStorage(Spec):
    """The volume that datasets are fetched to once per run, with exactly one of claimName and size."""

    claim_name: str | None = Field(
        None,
        description="Existing PersistentVolumeClaim. The run writes to its folder gymtrain-data/RUN, which stays.",
    )
    size: str | None = Field(
        None,
        pattern=SIZE_PATTERN,
        max_length=32,
        description="Size of a new volume for the run, which is deleted with it (claim RUN-data).",
    )
    storage_class_name: str | None = Field(
        None, description="StorageClass of the new volume. Defaults to the cluster's default."
    )
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteOnce"],
        min_length=1,
        max_length=2,
        description="Access modes of the new volume. More than one trainer node needs ReadWriteMany.",
    )


class Prepare(Spec):
    """NeMo Gym's own preparation of the datasets that the Gym config lists (ng_prepare_data), run once per run."""

    mode: Literal["train_preparation", "example_validation"] = Field(
        "train_preparation",
        description="train_preparation prepares the train, validation and benchmark datasets; example_validation the "
        "example datasets.",
    )
    should_download: bool = Field(False, description="Downloads the datasets that the Gym image doesn't have.")
    data_source: Literal["huggingface", "gitlab"] = Field(
        "huggingface", description="Where from, for datasets that the config lists at both."
    )
    token_secret: SecretKeyRef | None = Field(
        None,
        description="Secret key with the token for the downloads: NeMo Gym's hf_token, or with gitlabURI its "
        "mlflow_tracking_token.",
    )
    gitlab_uri: str | None = Field(
        None,
        alias="gitlabURI",
        min_length=1,
        max_length=512,
        description="URL of the model registry of a GitLab project (NeMo Gym's mlflow_tracking_uri).",
    )


class Dataset(ValidationDataset):
    """One dataset to train on."""

    weight: int = Field(1, ge=1, le=1000, description="How often this dataset is drawn from, relative to the others.")


class Data(Spec):
    """The datasets of the run."""

    prepare: Prepare | None = Field(
        None,
        description="Runs NeMo Gym's data preparation before preflight checks the data. fromGym then stands for what "
        "it has made of each type, which stays on data.storage.",
    )
    storage: DataStorage | None = Field(
        None,
        description="Volume that hf://, s3://, gs:// and az:// sources are fetched to before preflight checks them.",
    )
    train: list[Dataset] = Field(
        default_factory=lambda: [Dataset.model_validate({"fromGym": {}})],
        min_length=1,
        max_length=64,
        description="Datasets to train on. Default: the train datasets that the Gym config lists.",
    )
    validation: list[ValidationDataset] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Datasets that the policy is evaluated on and never trained on, as evaluation says.",
    )

    def placed(self) -> list[tuple[str, ValidationDataset]]:
        """All datasets, each with its place below `spec.data`, such as train[0]."""
        sets: dict[str, Sequence[ValidationDataset]] = {"train": self.train, "validation": self.validation or ()}
        return [(f"{name}[{number}]", one) for name, found in sets.items() for number, one in enumerate(found)]
