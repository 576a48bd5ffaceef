"""What a user reads when a run is refused: one case per rule, with the exact text."""

import json
from typing import Any

import pytest

from gymtrain_api.validations import PATTERN_MESSAGES, RULES
from tests.support.kubectl import Kubectl, KubectlError
from tests.support.specs import smallest_run


def _model(**model: Any) -> dict[str, Any]:
    return smallest_run(model={"source": "hf://Qwen/Qwen3-0.6B", **model})


def _evaluates_only(**blocks: Any) -> dict[str, Any]:
    evaluated: dict[str, Any] = {"data": {"validation": [{"source": "gym://x.jsonl"}]}}
    evaluated["evaluation"] = {"withoutTraining": {}}
    return smallest_run(**evaluated | blocks)


def _trainer(**trainer: Any) -> dict[str, Any]:
    return smallest_run(trainer=trainer)


def _data(*train: dict[str, Any]) -> dict[str, Any]:
    return smallest_run(data={"train": list(train)})


REASONING_GYM = {"task": "chain_sum", "size": 10}
NAME = (
    'metadata.name: Invalid value: "object": a run\'s name must have at most 40 characters, start with a letter and '
    "contain only a-z, 0-9 and '-', because Services and pods are named after it"
)
EXACTLY_ONE_SOURCE = (
    'Invalid value: "object": set exactly one of source (a JSONL file), reasoningGym (a generated dataset) and fromGym '
    "(the datasets that the Gym config lists)"
)
EXACTLY_ONE_VOLUME = (
    'spec.trainer.checkpoint: Invalid value: "object": set exactly one of claimName (an existing '
    "PersistentVolumeClaim) and size (a new volume for the run)"
)

# Our own rules: the whole message.
RULE_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "name too long": (smallest_run("a" * 41), NAME),
    "name with a dot": (smallest_run("v1.5"), NAME),
    "name that starts with a digit": (smallest_run("7b"), NAME),
    "ports that Gym servers reach of nobody": (
        smallest_run(gym={"configPaths": ["a.yaml"], "egress": {"ports": [443]}}),
        'spec.gym.egress.ports: Invalid value: "object": ports open nothing without cidrs or namespaces: set one of '
        "these, or remove ports",
    ),
    "traces to the port for gRPC": (
        smallest_run(tracing={"endpoint": "http://collector.observability.svc:4317"}),
        'spec.tracing.endpoint: Invalid value: "object": 4317 is the port of OTLP over gRPC, and traces are sent over '
        "HTTP: name the receiver's port for HTTP, usually 4318",
    ),
    "traces to something without a scheme": (
        smallest_run(tracing={"endpoint": "collector:4318"}),
        'spec.tracing.endpoint: Invalid value: "string": collector:4318 must be the URL of an OTLP receiver over HTTP, '
        "such as http://collector.observability.svc:4318, without credentials (headersSecret has those)",
    ),
    "a namespace that Gym servers reach": (
        smallest_run(gym={"configPaths": ["a.yaml"], "egress": {"namespaces": ["Judges"]}}),
        'spec.gym.egress.namespaces[0]: Invalid value: "string": Judges must be a name of lower-case letters, digits '
        "and -, such as judges",
    ),
    "model source": (
        _model(source="Qwen/Qwen3-0.6B"),
        'spec.model.source: Invalid value: "string": Qwen/Qwen3-0.6B must be hf://ORG/NAME (Hugging Face hub), '
        "pvc://CLAIM/PATH (a PersistentVolumeClaim), or oci://IMAGE (an image with the model in /models)",
    ),
    "revision without hub": (
        _model(source="pvc://models/qwen", revision="main"),
        "spec.model.revision: Forbidden: revision chooses a version of an hf:// source: remove it, or use an hf:// "
        "source",
    ),
    "token without hub": (
        _model(source="oci://registry/model:1", tokenSecret={"name": "hf", "key": "token"}),
        "spec.model.tokenSecret: Forbidden: tokenSecret is the Hugging Face token for an hf:// source: remove it, or "
        "use an hf:// source (for a private image use imagePullSecrets in a template or in serviceAccountName)",
    ),
    "storage for a mounted model": (
        _model(source="pvc://models/qwen", storage={"size": "1Gi"}),
        "spec.model.storage: Forbidden: a pvc:// source is mounted directly and needs no storage: remove storage",
    ),
    "storage size": (
        _model(storage={"size": "20 GB"}),
        'spec.model.storage.size: Invalid value: "string": 20 GB must be a size such as 20Gi or 500Mi',
    ),
    "data source": (
        _data({"source": "/data/train.jsonl"}),
        'spec.data.train[0].source: Invalid value: "string": /data/train.jsonl must be pvc://CLAIM/PATH '
        "(a PersistentVolumeClaim), configmap://NAME/KEY (a ConfigMap), gym://PATH (a file in the Gym image), "
        "volume://PATH (in the volume of this dataset), hf://ORG/NAME[@REVISION]/FILE (Hugging Face hub), "
        "s3://BUCKET/KEY, gs://BUCKET/OBJECT, or az://CONTAINER/BLOB",
    ),
    "agent beside fromGym": (
        _data({"fromGym": {}, "agent": "a"}),
        "spec.data.train[0].agent: Forbidden: with fromGym, the agent that lists a dataset gets its rows: remove "
        "agent, or choose with fromGym.agents",
    ),
    "secret of a source that is not fetched": (
        _data({"source": "gym://x.jsonl", "secret": {"name": "keys"}}),
        "spec.data.train[0].secret: Forbidden: secret has the credentials of an hf://, s3://, gs:// or az:// source: "
        "remove it, or use such a source",
    ),
    "volume:// without its volume": (
        _data({"source": "volume://x.jsonl"}),
        'spec.data.train[0].volume: Invalid value: "object": a volume:// source is a path in this dataset\'s volume: '
        "set both source: volume://PATH and volume, or neither",
    ),
    "nowhere to prepare": (
        smallest_run(data={"prepare": {}}),
        "spec.data.storage: Required value: prepare writes to a volume: set data.storage",
    ),
    "agents of prepared data": (
        smallest_run(
            data={"prepare": {}, "storage": {"size": "1Gi"}, "train": [{"fromGym": {"agents": ["a"]}}]},
        ),
        "spec.data.train: Invalid value: \"object\": prepare makes one file of all agents' rows, so fromGym can't "
        "choose agents: remove agents, or prepare",
    ),
    "download without a token": (
        smallest_run(data={"prepare": {"shouldDownload": True}, "storage": {"size": "1Gi"}}),
        "spec.data.prepare.tokenSecret: Required value: NeMo Gym downloads only with a token, even what is public: set "
        "tokenSecret",
    ),
    "GitLab without its URL": (
        smallest_run(data={"prepare": {"dataSource": "gitlab"}, "storage": {"size": "1Gi"}}),
        "spec.data.prepare.gitlabURI: Required value: dataSource gitlab needs the registry's URL: set gitlabURI",
    ),
    "download of examples": (
        smallest_run(
            data={
                "prepare": {
                    "mode": "example_validation",
                    "shouldDownload": True,
                    "tokenSecret": {"name": "hub", "key": "token"},
                },
                "storage": {"size": "1Gi"},
            }
        ),
        "spec.data.prepare.shouldDownload: Forbidden: NeMo Gym downloads nothing in mode example_validation: remove "
        "shouldDownload",
    ),
    "nowhere to fetch to": (
        _data({"source": "s3://rows/train.jsonl"}),
        "spec.data.storage: Required value: hf://, s3://, gs:// and az:// sources are fetched to a volume: set "
        "data.storage",
    ),
    "two volumes to fetch to": (
        smallest_run(data={"train": [{"fromGym": {}}], "storage": {"size": "1Gi", "claimName": "mine"}}),
        'spec.data.storage: Invalid value: "object": set exactly one of claimName (an existing PersistentVolumeClaim) '
        "and size (a new volume for the run)",
    ),
    "several nodes read a volume of one": (
        smallest_run(
            data={"train": [{"source": "s3://rows/train.jsonl"}], "storage": {"size": "1Gi"}}, trainer={"nodes": 2}
        ),
        'spec.data.storage.accessModes: Invalid value: "object": with more than one node, all trainer pods read the '
        "volume: set accessModes: [ReadWriteMany] and a storageClassName that supports it",
    ),
    "no data source": (
        _data({"source": "gym://x.jsonl"}, {"weight": 2}),
        f"spec.data.train[1]: {EXACTLY_ONE_SOURCE}",
    ),
    "no validation source": (
        smallest_run(data={"train": [{"source": "gym://x.jsonl"}], "validation": [{"agent": "a"}]}),
        f"spec.data.validation[0]: {EXACTLY_ONE_SOURCE}",
    ),
    "evaluation on nothing": (
        smallest_run(evaluation={"everySteps": 5}),
        "spec.data.validation: Required value: evaluation needs datasets to evaluate on: set data.validation, or "
        "remove evaluation",
    ),
    "evaluation without training on GPUs": (
        _evaluates_only(trainer={"gpus": 1}),
        'spec.trainer.gpus: Invalid value: "object": evaluation.withoutTraining only reads weights, on the CPU of one '
        "pod: leave out trainer.gpus, trainer.nodes and trainer.processesPerNode",
    ),
    "evaluation without training that goes on": (
        _evaluates_only(resumeFrom="workplace", trainer={"checkpoint": {"size": "1Gi"}}),
        'spec.evaluation.withoutTraining: Invalid value: "object": evaluation.withoutTraining trains nothing: leave '
        "out resumeFrom, model.lora and trainer.push (the adapter of a checkpoint is merged into the model)",
    ),
    "evaluation without training or weights": (
        _evaluates_only(weightSync={"transport": "None"}),
        'spec.weightSync.transport: Invalid value: "object": evaluation.withoutTraining sends weights from a CPU: set '
        "transport Auto or HTTPFull",
    ),
    "checkpoints to evaluate of no volume": (
        _evaluates_only(evaluation={"withoutTraining": {"checkpointsOf": "workplace"}}),
        "spec.trainer.checkpoint: Required value: checkpointsOf names a folder on the checkpoint volume: set "
        "trainer.checkpoint",
    ),
    "two data sources": (
        _data({"source": "gym://x.jsonl", "reasoningGym": REASONING_GYM}),
        f"spec.data.train[0]: {EXACTLY_ONE_SOURCE}",
    ),
    "processes and GPUs": (
        _trainer(gpus=8),
        'spec.trainer.processesPerNode: Invalid value: "object": each process trains on one GPU: set processesPerNode '
        "to the same number as gpus",
    ),
    "a command beside a framework": (
        _trainer(image="mine:1", command=["train"], framework="TRL"),
        "spec.trainer.framework: Forbidden: command starts another trainer in place of gymtrain's, whose framework "
        "this is: set one of framework and command",
    ),
    "a command without an image": (
        _trainer(command=["train"]),
        "spec.trainer.image: Required value: command is started in an image that has it: set image",
    ),
    "a command and what only gymtrain's trainer does": (
        _trainer(image="mine:1", command=["train"], checkpoint={"size": "1Gi"}, records={"samples": "All"}),
        'spec.trainer.command: Invalid value: "object": gymtrain\'s trainer writes records and pushes the model, and '
        "command replaces it: leave out push and records",
    ),
    "a command in a run that trains nothing": (
        _evaluates_only(trainer={"image": "mine:1", "command": ["train"]}),
        "spec.trainer.command: Forbidden: evaluation.withoutTraining is what gymtrain's trainer does: leave out "
        "trainer.command",
    ),
    "two checkpoint volumes": (_trainer(checkpoint={"claimName": "mine", "size": "1Gi"}), EXACTLY_ONE_VOLUME),
    "two compile caches": (
        smallest_run(inference={"compileCache": {"claimName": "mine", "size": "1Gi"}}),
        EXACTLY_ONE_VOLUME.replace("trainer.checkpoint", "inference.compileCache"),
    ),
    "no checkpoint volume": (_trainer(checkpoint={}), EXACTLY_ONE_VOLUME),
    "going on from nowhere": (
        smallest_run(resumeFrom="workplace"),
        "spec.trainer.checkpoint: Required value: resumeFrom names a folder on the checkpoint volume: set "
        "trainer.checkpoint",
    ),
    "going on from outside the volume": (
        smallest_run(resumeFrom="../other", trainer={"checkpoint": {"claimName": "mine"}}),
        'spec.resumeFrom: Invalid value: "string": ../other must be RUN, RUN/checkpoint-STEP or RUN/best, '
        "with /previous-N after RUN for what was set aside",
    ),
    "a claim of the user's deleted": (
        _trainer(checkpoint={"claimName": "mine", "retain": "Delete"}),
        "spec.trainer.checkpoint.retain: Forbidden: retain applies only to a volume made for the run (size), and an "
        "existing claim is never deleted: remove retain",
    ),
    "checkpoint size": (
        _trainer(checkpoint={"size": "big"}),
        'spec.trainer.checkpoint.size: Invalid value: "string": big must be a size such as 20Gi or 500Mi',
    ),
    "several nodes on a volume for one": (
        _trainer(nodes=2, checkpoint={"size": "1Gi"}),
        'spec.trainer.checkpoint.accessModes: Invalid value: "object": with more than one node, all trainer pods write '
        "to the volume: set accessModes: [ReadWriteMany] and a storageClassName that supports it",
    ),
    "records without a volume": (
        _trainer(records={"samples": "All"}),
        "spec.trainer.checkpoint: Required value: records are written to the checkpoint volume: set "
        "trainer.checkpoint, or records.samples and records.rollouts: None",
    ),
    "push without a volume": (
        _trainer(push={"to": "hf://org/name"}),
        "spec.trainer.checkpoint: Required value: the final model is written to the checkpoint volume, then pushed: "
        "set trainer.checkpoint",
    ),
    "place of a push": (
        _trainer(checkpoint={"size": "1Gi"}, push={"to": "s3://bucket"}),
        'spec.trainer.push.to: Invalid value: "string": s3://bucket must be hf://ORG/NAME (Hugging Face hub), '
        "s3://BUCKET/PATH, gs://BUCKET/PATH, or az://CONTAINER/PATH",
    ),
    "size of records": (
        _trainer(records={"maxSize": "2 GB"}),
        'spec.trainer.records.maxSize: Invalid value: "string": 2 GB must be a size such as 20Gi or 500Mi',
    ),
    "adapter without a volume": (
        _model(lora={"r": 8}),
        "spec.trainer.checkpoint: Required value: an adapter reaches vLLM through the checkpoint volume: set "
        "trainer.checkpoint",
    ),
    "adapter for a server on several nodes": (
        smallest_run(
            model={"source": "hf://Qwen/Qwen3-0.6B", "lora": {"r": 8}},
            trainer={"checkpoint": {"size": "1Gi"}},
            inference={"nodes": 2},
        ),
        'spec.trainer.checkpoint.accessModes: Invalid value: "object": all pods of a vLLM server on several nodes read '
        "adapters from the volume: set accessModes: [ReadWriteMany] and a storageClassName that supports it",
    ),
    "no vLLM server": (
        smallest_run(inference={"replicas": 0}),
        "\n* spec.inference.replicas: Invalid value: 0: spec.inference.replicas in body should be greater than or "
        'equal to 1\n* spec.inference.replicas: Invalid value: "object": a run that isn\'t suspended has one vLLM '
        "server at least: to take all its pods away, set suspend: true",
    ),
    "fewest replicas above replicas": (
        smallest_run(inference={"replicas": 2, "minReplicas": 3}),
        'spec.inference.minReplicas: Invalid value: "object": must not be more than replicas',
    ),
    "fewest replicas of servers on several nodes": (
        smallest_run(inference={"replicas": 2, "minReplicas": 1, "nodes": 2}),
        "spec.inference.minReplicas: Forbidden: Kueue can admit fewer of one kind of pods only, and a server with "
        "nodes above 1 has two: remove minReplicas or nodes",
    ),
    "compile cache of a server on several nodes": (
        smallest_run(inference={"nodes": 2, "compileCache": {"size": "1Gi"}}),
        'spec.inference.compileCache.accessModes: Invalid value: "object": all pods of a vLLM server on several nodes '
        "mount the volume: set accessModes: [ReadWriteMany] and a storageClassName that supports it",
    ),
    "adapter transport without an adapter": (
        smallest_run(weightSync={"transport": "LoRAFilesystem"}),
        'spec.weightSync.transport: Invalid value: "object": LoRAFilesystem sends adapters: set model.lora, or '
        "choose another transport",
    ),
    "parity threshold": (
        smallest_run(weightSync={"parityThreshold": "5%"}),
        'spec.weightSync.parityThreshold: Invalid value: "string": 5% must be a decimal number such as 0.05, written '
        "in quotes",
    ),
    "NCCL without GPUs": (
        smallest_run(weightSync={"transport": "NCCL"}, inference={"gpus": 1}),
        'spec.weightSync.transport: Invalid value: "object": NCCL needs GPUs on both sides: set trainer.gpus and '
        "inference.gpus, or choose another transport",
    ),
    "stall before timeout": (
        smallest_run(rollout={"timeoutSeconds": 3600}),
        'spec.rollout.stallTimeoutSeconds: Invalid value: "object": stallTimeoutSeconds must be at least '
        "timeoutSeconds: otherwise one slow rollout fails the attempt",
    ),
    "ranges in a closed network": (
        smallest_run(sandboxes={"network": {"cidrs": ["10.0.0.0/8"]}}),
        'spec.sandboxes.network.mode: Invalid value: "object": cidrs and ports have no effect in mode Closed: set '
        "mode: EgressAllowed, or remove them",
    ),
    "an open network without ranges": (
        smallest_run(sandboxes={"network": {"mode": "EgressAllowed"}}),
        "spec.sandboxes.network.cidrs: Required value: EgressAllowed needs address ranges: set cidrs ([0.0.0.0/0] is "
        "every IPv4 address)",
    ),
    "address range": (
        smallest_run(sandboxes={"network": {"mode": "EgressAllowed", "cidrs": ["10.0.0.1"]}}),
        'spec.sandboxes.network.cidrs[0]: Invalid value: "string": 10.0.0.1 must be an address range such as '
        "10.0.0.0/8 or 0.0.0.0/0",
    ),
    "reuse in place by agent-sandbox": (
        smallest_run(sandboxes={"backend": "AgentSandbox", "warmPools": [{"image": "a:1", "reuse": "Restart"}]}),
        "spec.sandboxes.backend: Invalid value: \"object\": agent-sandbox can't restart a sandbox's container: set "
        "reuse: Never in all warmPools, or backend: Pod",
    ),
    "image to pull ahead": (
        smallest_run(sandboxes={"prePull": {"images": ["a:1", "my image"]}}),
        'spec.sandboxes.prePull.images[1]: Invalid value: "string": my image must be an image name such as '
        "docker.io/library/debian:trixie",
    ),
    "resource of GPUs": (
        _trainer(gpuResourceName="gpu"),
        'spec.trainer.gpuResourceName: Invalid value: "string": gpu must be an extended resource such as '
        "nvidia.com/gpu or amd.com/gpu",
    ),
    "image of a pool": (
        smallest_run(sandboxes={"warmPools": [{"image": "my image"}]}),
        'spec.sandboxes.warmPools[0].image: Invalid value: "string": my image must be an image name such as '
        "docker.io/library/debian:trixie",
    ),
}

# What the schema says by itself; the words are Kubernetes'.
SCHEMA_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown choice": (
        _model(dtype="fp8"),
        'spec.model.dtype: Unsupported value: "fp8": supported values: "auto", "float32", "bfloat16", "float16"',
    ),
    "out of range": (
        _trainer(nodes=0),
        "spec.trainer.nodes: Invalid value: 0: spec.trainer.nodes in body should be greater than or equal to 1",
    ),
    "missing field": (smallest_run(gym={}), "spec.gym.configPaths: Required value"),
    "empty list": (smallest_run(gym={"configPaths": []}), "spec.gym.configPaths in body should have at least 1 items"),
    "wrong type": (smallest_run(backoffLimit="3"), "spec.backoffLimit in body must be of type integer"),
}


def _refusal(kubectl: Kubectl, run: dict[str, Any]) -> str:
    with pytest.raises(KubectlError) as error:
        kubectl.apply(run)
    return str(error.value)


@pytest.mark.parametrize("case", RULE_CASES)
def test_a_mistake_is_refused_with_words_that_help(kubectl: Kubectl, case: str) -> None:
    run, message = RULE_CASES[case]
    name = run["metadata"]["name"]
    assert _refusal(kubectl, run) == f'kubectl apply -f -: The GymTrainingRun "{name}" is invalid: {message}'


@pytest.mark.parametrize("case", SCHEMA_CASES)
def test_the_schema_refuses(kubectl: Kubectl, case: str) -> None:
    run, message = SCHEMA_CASES[case]
    assert message in _refusal(kubectl, run)


def test_every_rule_has_a_case() -> None:
    texts = [rule.message for rule in RULES if "oldSelf" not in rule.rule] + list(PATTERN_MESSAGES.values())
    assert [text for text in texts if not any(shown.endswith(text) for _, shown in RULE_CASES.values())] == []


ALLOWED: dict[str, dict[str, Any]] = {
    "fewer replicas in a full queue": smallest_run(inference={"replicas": 2, "minReplicas": 2}),
    "longest name": smallest_run("a" * 40),
    "gated model of the hub": _model(revision="main", tokenSecret={"name": "hf", "key": "token"}),
    "root of a claim": _model(source="pvc://models"),
    "digest of an image": _model(source="oci://registry.example.com:5000/m/x@sha256:" + "0" * 64),
    "a slice of a GPU": _trainer(gpus=1, gpuResourceName="nvidia.com/mig-1g.10gb"),
    "GPUs by a resource claim": _trainer(gpus=1, gpuResourceName=""),
    "one process per GPU": _trainer(gpus=8, processesPerNode=8),
    "a command": _trainer(image="mine:1", command=["torchrun", "train.py"], gpus=8, config={"anything": 1}),
    "a framework by its name": _trainer(framework="TRL", image="mine:1"),
    "several processes on the CPU": _trainer(processesPerNode=2),
    "several nodes on a shared volume": _trainer(nodes=2, checkpoint={"size": "1Gi", "accessModes": ["ReadWriteMany"]}),
    "several nodes on a claim": _trainer(nodes=2, checkpoint={"claimName": "mine"}),
    "an adapter on a volume": smallest_run(
        model={"source": "hf://Qwen/Qwen3-0.6B", "lora": {"r": 8, "target_modules": ["q_proj"]}},
        trainer={"checkpoint": {"size": "1Gi"}},
        weightSync={"transport": "LoRAFilesystem"},
    ),
    "NCCL between GPUs": smallest_run(
        weightSync={"transport": "NCCL"}, inference={"gpus": 1}, trainer={"gpus": 1, "processesPerNode": 1}
    ),
    "a server on two nodes": smallest_run(
        inference={"nodes": 2, "gpus": 8, "compileCache": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}
    ),
    "a server on two nodes, with an adapter on a shared volume": smallest_run(
        model={"source": "hf://Qwen/Qwen3-0.6B", "lora": {"r": 8, "target_modules": ["q_proj"]}},
        trainer={"checkpoint": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}},
        inference={"nodes": 2},
    ),
    "no agents": smallest_run(rollout={"mode": "Verify"}, gateway={"replicas": 2}),
    "Gym servers that reach a judge": smallest_run(
        gym={"configPaths": ["a.yaml"], "egress": {"cidrs": ["10.0.0.0/8"], "namespaces": ["judges"], "ports": [443]}}
    ),
    "sandboxes": smallest_run(sandboxes={}),
    "sandboxes by agent-sandbox": smallest_run(sandboxes={"backend": "AgentSandbox", "warmPools": [{"image": "a:1"}]}),
    "sandboxes with all": smallest_run(
        sandboxes={
            "warmPools": [{"image": "a:1", "replicas": 2, "reuse": "Restart"}, {"image": "b:1"}],
            "lookAhead": {"tasks": 8},
            "network": {"mode": "EgressAllowed", "cidrs": ["10.0.0.0/8", "fd00::/8"], "ports": [443]},
            "root": True,
            "hostUsers": False,
            "imagePullSecrets": [{"name": "registry"}],
            "imageRewrites": [{"from": "docker.io/", "to": "mirror.local/"}],
            "prePull": {
                "images": ["a:1", "ghcr.io/b@sha256:" + "0" * 64],
                "tasks": 16,
                "nodes": 3,
                "maxPerRegistry": 8,
            },
            "runtimeClassName": "gvisor",
            "resources": {"limits": {"memory": "8Gi"}},
            "maxResources": {"cpu": 8, "memory": "32Gi", "ephemeralStorage": "100Gi"},
            "template": {"spec": {"nodeSelector": {"pool": "sandboxes"}}},
        }
    ),
    "datasets of both kinds": _data({"source": "configmap://rows/a.jsonl"}, {"reasoningGym": REASONING_GYM}),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_right_is_accepted(kubectl: Kubectl, case: str) -> None:
    kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(ALLOWED[case]))
