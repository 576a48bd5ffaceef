"""What the API server refuses in addition to types and ranges, and the messages for the user.

Each rule is CEL in the CRD (`x-kubernetes-validations`), so a mistake shows at `kubectl apply`. A
message says what is wrong and how to fix it. What only a library can know (a Gym config, a dataset,
TRL's settings), preflight checks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gymtrain_api.names import MAX_RUN_NAME
from gymtrain_api.resume import RESUME_PATTERN
from gymtrain_api.sources import DATA_SOURCE_PATTERN, MODEL_SOURCE_PATTERN, PUSH_PATTERN, REMOTE_PATTERN
from gymtrain_api.spec import (
    CIDR_PATTERN,
    DECIMAL_PATTERN,
    GPU_RESOURCE_PATTERN,
    IMAGE_PATTERN,
    NAME_PATTERN,
    OTLP_PATTERN,
    SIZE_PATTERN,
)
from gymtrain_api.spec.training import Checkpoint

# A CEL rule checks a field's pattern and shows the value followed by this message. The API server's own
# message for a `pattern` shows only the expression.
PATTERN_MESSAGES = {
    MODEL_SOURCE_PATTERN: "must be hf://ORG/NAME (Hugging Face hub), pvc://CLAIM/PATH (a PersistentVolumeClaim), or "
    "oci://IMAGE (an image with the model in /models)",
    DATA_SOURCE_PATTERN: "must be pvc://CLAIM/PATH (a PersistentVolumeClaim), configmap://NAME/KEY (a ConfigMap), "
    "gym://PATH (a file in the Gym image), volume://PATH (in the volume of this dataset), "
    "hf://ORG/NAME[@REVISION]/FILE (Hugging Face hub), s3://BUCKET/KEY, gs://BUCKET/OBJECT, or az://CONTAINER/BLOB",
    PUSH_PATTERN: "must be hf://ORG/NAME (Hugging Face hub), s3://BUCKET/PATH, gs://BUCKET/PATH, or az://CONTAINER/PATH",
    DECIMAL_PATTERN: "must be a decimal number such as 0.05, written in quotes",
    SIZE_PATTERN: "must be a size such as 20Gi or 500Mi",
    CIDR_PATTERN: "must be an address range such as 10.0.0.0/8 or 0.0.0.0/0",
    NAME_PATTERN: "must be a name of lower-case letters, digits and -, such as judges",
    OTLP_PATTERN: "must be the URL of an OTLP receiver over HTTP, such as http://collector.observability.svc:4318, "
    "without credentials (headersSecret has those)",
    RESUME_PATTERN: "must be RUN, RUN/checkpoint-STEP or RUN/best, with /previous-N after RUN for what was set aside",
    GPU_RESOURCE_PATTERN: "must be an extended resource such as nvidia.com/gpu or amd.com/gpu",
    IMAGE_PATTERN: "must be an image name such as docker.io/library/debian:trixie",
}


@dataclass(frozen=True)
class Rule:
    """One CEL rule.

    Attributes:
        at: wire path of the object that the rule checks: "" for the run, `[]` for each item of a list.
        rule: CEL over `self`, and over `oldSelf` for a rule about changes.
        message: what the user reads.
        field: wire path below `at` where the message is shown; empty for the object itself.
        reason: how clients classify the refusal.
    """

    at: str
    rule: str
    message: str
    field: str = ""
    reason: Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"] = "FieldValueInvalid"


def _of_datasets(at: str) -> tuple[Rule, ...]:
    """The rules of one dataset of a list of `spec.data`."""
    return (
        Rule(
            at=at,
            rule="[has(self.source), has(self.reasoningGym), has(self.fromGym)].filter(x, x).size() == 1",
            message="set exactly one of source (a JSONL file), reasoningGym (a generated dataset) and fromGym (the "
            "datasets that the Gym config lists)",
        ),
        Rule(
            at=at,
            rule="!has(self.agent) || !has(self.fromGym)",
            message="with fromGym, the agent that lists a dataset gets its rows: remove agent, or choose with "
            "fromGym.agents",
            field="agent",
            reason="FieldValueForbidden",
        ),
        Rule(
            at=at,
            rule=f"!has(self.secret) || (has(self.source) && self.source.matches('{REMOTE_PATTERN}'))",
            message="secret has the credentials of an hf://, s3://, gs:// or az:// source: remove it, or use such a "
            "source",
            field="secret",
            reason="FieldValueForbidden",
        ),
        Rule(
            at=at,
            rule="has(self.volume) == (has(self.source) && self.source.startsWith('volume://'))",
            message="a volume:// source is a path in this dataset's volume: set both source: volume://PATH and volume, "
            "or neither",
            field="volume",
        ),
    )


_ALONE = "(has(self.evaluation) && has(self.evaluation.withoutTraining))"
_COMBINATIONS = (
    Rule(
        at="",
        rule=f"self.metadata.name.size() <= {MAX_RUN_NAME} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message=f"a run's name must have at most {MAX_RUN_NAME} characters, start with a letter and contain only a-z, "
        "0-9 and '-', because Services and pods are named after it",
        field="metadata.name",
    ),
    Rule(
        at="spec.model",
        rule="!has(self.revision) || self.source.startsWith('hf://')",
        message="revision chooses a version of an hf:// source: remove it, or use an hf:// source",
        field="revision",
        reason="FieldValueForbidden",
    ),
    Rule(
        at="spec.model",
        rule="!has(self.tokenSecret) || self.source.startsWith('hf://')",
        message="tokenSecret is the Hugging Face token for an hf:// source: remove it, or use an hf:// source "
        "(for a private image use imagePullSecrets in a template or in serviceAccountName)",
        field="tokenSecret",
        reason="FieldValueForbidden",
    ),
    Rule(
        at="spec.model",
        rule="!has(self.storage) || !self.source.startsWith('pvc://')",
        message="a pvc:// source is mounted directly and needs no storage: remove storage",
        field="storage",
        reason="FieldValueForbidden",
    ),
    *_of_datasets("spec.data.train[]"),
    *_of_datasets("spec.data.validation[]"),
    Rule(
        at="spec.data",
        rule="has(self.storage) || "
        f"!(self.train.exists(d, has(d.source) && d.source.matches('{REMOTE_PATTERN}')) || (has(self.validation) && "
        f"self.validation.exists(d, has(d.source) && d.source.matches('{REMOTE_PATTERN}'))))",
        message="hf://, s3://, gs:// and az:// sources are fetched to a volume: set data.storage",
        field="storage",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec.data",
        rule="has(self.storage) || !has(self.prepare)",
        message="prepare writes to a volume: set data.storage",
        field="storage",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec.data",
        rule="!has(self.prepare) || (self.train.all(d, !has(d.fromGym) || !has(d.fromGym.agents)) && "
        "(!has(self.validation) || self.validation.all(d, !has(d.fromGym) || !has(d.fromGym.agents))))",
        message="prepare makes one file of all agents' rows, so fromGym can't choose agents: remove agents, or prepare",
        field="train",
    ),
    Rule(
        at="spec.data.prepare",
        rule="!self.shouldDownload || has(self.tokenSecret)",
        message="NeMo Gym downloads only with a token, even what is public: set tokenSecret",
        field="tokenSecret",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec.data.prepare",
        rule="self.dataSource != 'gitlab' || has(self.gitlabURI)",
        message="dataSource gitlab needs the registry's URL: set gitlabURI",
        field="gitlabURI",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec.data.prepare",
        rule="self.mode != 'example_validation' || !self.shouldDownload",
        message="NeMo Gym downloads nothing in mode example_validation: remove shouldDownload",
        field="shouldDownload",
        reason="FieldValueForbidden",
    ),
    Rule(
        at="spec.data.storage",
        rule="has(self.claimName) != has(self.size)",
        message="set exactly one of claimName (an existing PersistentVolumeClaim) and size (a new volume for the run)",
    ),
    Rule(
        at="spec",
        rule="self.trainer.nodes == 1 || !has(self.data.storage) || !has(self.data.storage.size) || "
        "'ReadWriteMany' in self.data.storage.accessModes",
        message="with more than one node, all trainer pods read the volume: set accessModes: [ReadWriteMany] and a "
        "storageClassName that supports it",
        field="data.storage.accessModes",
    ),
    Rule(
        at="spec",
        rule="!has(self.evaluation) || has(self.data.validation)",
        message="evaluation needs datasets to evaluate on: set data.validation, or remove evaluation",
        field="data.validation",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec",
        rule=f"!{_ALONE} || (self.trainer.gpus == 0 && self.trainer.nodes == 1 && self.trainer.processesPerNode == 1)",
        message="evaluation.withoutTraining only reads weights, on the CPU of one pod: leave out trainer.gpus, "
        "trainer.nodes and trainer.processesPerNode",
        field="trainer.gpus",
    ),
    Rule(
        at="spec",
        rule=f"!{_ALONE} || (!has(self.resumeFrom) && !has(self.model.lora) && !has(self.trainer.push))",
        message="evaluation.withoutTraining trains nothing: leave out resumeFrom, model.lora and trainer.push (the "
        "adapter of a checkpoint is merged into the model)",
        field="evaluation.withoutTraining",
    ),
    Rule(
        at="spec",
        rule=f"!{_ALONE} || self.weightSync.transport in ['Auto', 'HTTPFull']",
        message="evaluation.withoutTraining sends weights from a CPU: set transport Auto or HTTPFull",
        field="weightSync.transport",
    ),
    Rule(
        at="spec",
        rule=f"!{_ALONE} || !has(self.evaluation.withoutTraining.checkpointsOf) || has(self.trainer.checkpoint)",
        message="checkpointsOf names a folder on the checkpoint volume: set trainer.checkpoint",
        field="trainer.checkpoint",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec",
        rule=f"!{_ALONE} || !has(self.trainer.command)",
        message="evaluation.withoutTraining is what gymtrain's trainer does: leave out trainer.command",
        field="trainer.command",
        reason="FieldValueForbidden",
    ),
    Rule(
        at="spec.trainer",
        rule="!has(self.command) || !has(self.framework)",
        message="command starts another trainer in place of gymtrain's, whose framework this is: set one of framework "
        "and command",
        field="framework",
        reason="FieldValueForbidden",
    ),
    Rule(
        at="spec.trainer",
        rule="!has(self.command) || has(self.image)",
        message="command is started in an image that has it: set image",
        field="image",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec.trainer",
        rule="!has(self.command) || (!has(self.push) && self.records.samples == 'None')",
        message="gymtrain's trainer writes records and pushes the model, and command replaces it: leave out push and "
        "records",
        field="command",
    ),
    Rule(
        at="spec.trainer",
        rule="has(self.command) || self.gpus == 0 || self.processesPerNode == self.gpus",
        message="each process trains on one GPU: set processesPerNode to the same number as gpus",
        field="processesPerNode",
    ),
    Rule(
        at="spec.inference",
        rule="self.replicas > 0",
        message="a run that isn't suspended has one vLLM server at least: to take all its pods away, set suspend: true",
        field="replicas",
    ),
    Rule(
        at="spec.inference",
        rule="!has(self.minReplicas) || self.minReplicas <= self.replicas",
        message="must not be more than replicas",
        field="minReplicas",
    ),
    Rule(
        at="spec.inference",
        rule="!has(self.minReplicas) || self.nodes == 1",
        message="Kueue can admit fewer of one kind of pods only, and a server with nodes above 1 has two: remove "
        "minReplicas or nodes",
        field="minReplicas",
        reason="FieldValueForbidden",
    ),
    Rule(
        at="spec.inference.compileCache",
        rule="has(self.claimName) != has(self.size)",
        message="set exactly one of claimName (an existing PersistentVolumeClaim) and size (a new volume for the run)",
    ),
    Rule(
        at="spec.trainer.checkpoint",
        rule="has(self.claimName) != has(self.size)",
        message="set exactly one of claimName (an existing PersistentVolumeClaim) and size (a new volume for the run)",
    ),
    Rule(
        at="spec.trainer",
        rule="self.nodes == 1 || !has(self.checkpoint) || !has(self.checkpoint.size) || "
        "'ReadWriteMany' in self.checkpoint.accessModes",
        message="with more than one node, all trainer pods write to the volume: set accessModes: [ReadWriteMany] and a "
        "storageClassName that supports it",
        field="checkpoint.accessModes",
    ),
    Rule(
        at="spec",
        rule="self.inference.nodes == 1 || !has(self.model.lora) || !(self.weightSync.transport in ['Auto', "
        "'LoRAFilesystem']) || !has(self.trainer.checkpoint) || !has(self.trainer.checkpoint.size) || "
        "'ReadWriteMany' in self.trainer.checkpoint.accessModes",
        message="all pods of a vLLM server on several nodes read adapters from the volume: set accessModes: "
        "[ReadWriteMany] and a storageClassName that supports it",
        field="trainer.checkpoint.accessModes",
    ),
    Rule(
        at="spec.inference",
        rule="self.nodes == 1 || !has(self.compileCache) || !has(self.compileCache.size) || "
        "'ReadWriteMany' in self.compileCache.accessModes",
        message="all pods of a vLLM server on several nodes mount the volume: set accessModes: [ReadWriteMany] and a "
        "storageClassName that supports it",
        field="compileCache.accessModes",
    ),
    Rule(
        at="spec.trainer.checkpoint",
        rule="!has(self.claimName) || self.retain != 'Delete'",
        message="retain applies only to a volume made for the run (size), and an existing claim is never deleted: "
        "remove retain",
        field="retain",
        reason="FieldValueForbidden",
    ),
    Rule(
        at="spec.trainer",
        rule="(self.records.samples == 'None' && self.records.rollouts == 'None') || has(self.checkpoint)",
        message="records are written to the checkpoint volume: set trainer.checkpoint, or records.samples and "
        "records.rollouts: None",
        field="checkpoint",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec.trainer",
        rule="!has(self.push) || has(self.checkpoint)",
        message="the final model is written to the checkpoint volume, then pushed: set trainer.checkpoint",
        field="checkpoint",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec",
        rule="!has(self.model.lora) || has(self.trainer.checkpoint)",
        message="an adapter reaches vLLM through the checkpoint volume: set trainer.checkpoint",
        field="trainer.checkpoint",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec",
        rule="!has(self.resumeFrom) || has(self.trainer.checkpoint)",
        message="resumeFrom names a folder on the checkpoint volume: set trainer.checkpoint",
        field="trainer.checkpoint",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec",
        rule="self.weightSync.transport != 'LoRAFilesystem' || has(self.model.lora)",
        message="LoRAFilesystem sends adapters: set model.lora, or choose another transport",
        field="weightSync.transport",
    ),
    Rule(
        at="spec",
        rule="self.weightSync.transport != 'NCCL' || (self.trainer.gpus > 0 && self.inference.gpus > 0)",
        message="NCCL needs GPUs on both sides: set trainer.gpus and inference.gpus, or choose another transport",
        field="weightSync.transport",
    ),
    Rule(
        at="spec.rollout",
        rule="self.stallTimeoutSeconds >= self.timeoutSeconds",
        message="stallTimeoutSeconds must be at least timeoutSeconds: otherwise one slow rollout fails the attempt",
        field="stallTimeoutSeconds",
    ),
    Rule(
        at="spec.tracing",
        rule="!self.endpoint.matches('^https?://[^/]*:4317(/|$)')",
        message="4317 is the port of OTLP over gRPC, and traces are sent over HTTP: name the receiver's port for HTTP, "
        "usually 4318",
        field="endpoint",
    ),
    Rule(
        at="spec.gym.egress",
        rule="!has(self.ports) || size(self.ports) == 0 || (has(self.cidrs) && size(self.cidrs) > 0) || "
        "(has(self.namespaces) && size(self.namespaces) > 0)",
        message="ports open nothing without cidrs or namespaces: set one of these, or remove ports",
        field="ports",
    ),
    Rule(
        at="spec.sandboxes.network",
        rule="self.mode == 'EgressAllowed' || ((!has(self.cidrs) || size(self.cidrs) == 0) && "
        "(!has(self.ports) || size(self.ports) == 0))",
        message="cidrs and ports have no effect in mode Closed: set mode: EgressAllowed, or remove them",
        field="mode",
    ),
    Rule(
        at="spec.sandboxes.network",
        rule="self.mode != 'EgressAllowed' || (has(self.cidrs) && size(self.cidrs) > 0)",
        message="EgressAllowed needs address ranges: set cidrs ([0.0.0.0/0] is every IPv4 address)",
        field="cidrs",
        reason="FieldValueRequired",
    ),
    Rule(
        at="spec.sandboxes",
        rule="self.backend != 'AgentSandbox' || !has(self.warmPools) || "
        "self.warmPools.all(pool, !has(pool.reuse) || pool.reuse != 'Restart')",
        message="agent-sandbox can't restart a sandbox's container: set reuse: Never in all warmPools, or backend: Pod",
        field="backend",
    ),
)

# Preflight has checked these, and all pods are made from them. During a run, suspend, replicas, limits, deadlines and
# the fields in LIVE_WITHIN take effect at once; resources and templates, for pods that are made later.
FIXED_AFTER_PREFLIGHT = (
    "model",
    "gym.image",
    "gym.configPaths",
    "gym.overrides",
    "gym.env",
    "data",
    "inference.image",
    "inference.nodes",
    "inference.gpus",
    "inference.gpuResourceName",
    "inference.args",
    "inference.compileCache",
    "trainer.image",
    "trainer.framework",
    "trainer.command",
    "trainer.nodes",
    "trainer.processesPerNode",
    "trainer.gpus",
    "trainer.gpuResourceName",
    "trainer.config",
    "trainer.env",
    "trainer.checkpoint",
    "trainer.records",
    "trainer.push",
    "rollout",
    "evaluation",
    "gateway.image",
    "weightSync",
    "tracing",
    "serviceAccountName",
    "priorityClassName",
    "resumeFrom",
)
# Fields of these blocks that can still change.
LIVE_WITHIN: Mapping[str, frozenset[str]] = {"trainer.checkpoint": frozenset({"retain"})}
_FIXED_WITHIN = {
    "trainer.checkpoint": sorted(
        name
        for field in Checkpoint.model_fields.values()
        if (name := str(field.alias)) not in LIVE_WITHIN["trainer.checkpoint"]
    )
}
_PREFLIGHT_PASSED = (
    "has(oldSelf.status) && has(oldSelf.status.conditions) && "
    "oldSelf.status.conditions.exists(c, c.type == 'PreflightPassed' && c.status == 'True')"
)


def _fixed(path: str) -> Rule:
    """Refuses changing, adding or removing the field once preflight has passed.

    It uses has() and plain selection, because the API server can't bound the cost of CEL's optionals.
    One change slips through: a renamed key in a free block (overrides, config, an env entry). CEL compares
    keys that the schema doesn't know only if both sides have them. The operator ignores it (decision 5).
    """
    new, old = f"self.spec.{path}", f"oldSelf.spec.{path}"
    parts = _FIXED_WITHIN.get(path)
    equal = (
        " && ".join(f"({_same(f'{new}.{part}', f'{old}.{part}')})" for part in parts) if parts else f"{new} == {old}"
    )
    same = f"has({new}) == has({old}) && (!has({new}) || ({equal}))"
    return Rule(
        at="",
        rule=f"!({_PREFLIGHT_PASSED}) || ({same})",
        message=f"spec.{path} can't change after preflight has passed: delete the run and apply it again, or apply it "
        "under another name",
        field=f"spec.{path}",
        reason="FieldValueForbidden",
    )


def _same(new: str, old: str) -> str:
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


_FIXED_BACKEND = Rule(
    at="",
    rule=f"!({_PREFLIGHT_PASSED}) || !has(self.spec.sandboxes) || !has(oldSelf.spec.sandboxes) || "
    "self.spec.sandboxes.backend == oldSelf.spec.sandboxes.backend",
    message="spec.sandboxes.backend can't change after preflight has passed: delete the run and apply it again, or "
    "apply it under another name",
    field="spec.sandboxes.backend",
    reason="FieldValueForbidden",
)

RULES = (*_COMBINATIONS, *(_fixed(path) for path in FIXED_AFTER_PREFLIGHT), _FIXED_BACKEND)
