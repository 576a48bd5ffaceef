"""Preflight: one pod for a set of inputs; nothing else of the run exists until it has passed.

objects that the spec names ─► the pod ─► its verdict, kept in a ConfigMap ─► findings: the run fails
                                                                         └──► warnings: said below the condition
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from pydantic import BaseModel, ValidationError

from gymtrain_api import labels, names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.sources import (
    ConfigMapKey,
    GymPath,
    HubDataset,
    HuggingFace,
    ModelImage,
    StoredObject,
    VolumeClaim,
    VolumePath,
    parse_data_source,
    parse_model_source,
)
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_seconds
from gymtrain_api.wiring import PREFLIGHT_MARK, Finding, GymPreflight, TrainerPreflight
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests import preflight as manifests
from gymtrain_operator.manifests.config_maps import PREFLIGHT_KEY, run_config_map
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.network import network_policies
from gymtrain_operator.manifests.volumes import volume_claims
from gymtrain_operator.reconcile.changes import Changes, Deletion, Failure
from gymtrain_operator.reconcile.conditions import false_condition, true_condition, unknown_condition
from gymtrain_operator.reconcile.observation import Children, Observation, Verdict, age_of, is_deleting, name_of
from gymtrain_operator.reconcile.pod_diagnosis import Terminated, is_over, problem, terminated, was_disrupted
from gymtrain_operator.reconcile.upgrades import noted_images

MISSING_GRACE_SECONDS = 60
"""How long an object that the spec names may come after the run: `kubectl apply` of a folder has an order."""

_POLL_SECONDS = 5.0
_LOG_SECONDS = 60.0  # in which a node gives the log of what has ended: a kubelet or a runtime restarts meanwhile
_IMAGES = {
    manifests.GYM_CONTAINER: "spec.gym.image",
    manifests.TRAINER_CONTAINER: "spec.trainer.image",
    manifests.INFERENCE_CONTAINER: "spec.inference.image",
}
_NO_MODULE = re.compile(r"No module named '?(gymtrain_\w+(?:\.\w+)*)")
_WARNING_MARK = "\nwarning: "


@dataclass(frozen=True)
class PreflightStep:
    """Where preflight stands: passed (`verdict`), failed (`failure`), or under way (neither)."""

    changes: Changes
    verdict: Verdict | None = None
    failure: Failure | None = None


def step(
    seen: Observation, run: RunContext, before: GymTrainingRunStatus, ignored: tuple[str, ...] = ()
) -> PreflightStep:
    """Brings preflight one step on. `ignored` are fields that changed too late (see `immutable_fields`)."""
    if verdict := standing_verdict(seen, run, before):
        return _passed(run, verdict, ignored)

    wanted = manifests.preflight_hash(run)
    name = names.preflight(run.name, wanted)
    outdated = tuple(Deletion.of(p) for p in seen.children.pods(labels.Role.PREFLIGHT) if name_of(p) != name)
    pod = seen.children.get("Pod", name)
    return _with_deletions(_for_pod(seen, run, before, pod, wanted), outdated)


def standing_verdict(seen: Observation, run: RunContext, before: GymTrainingRunStatus) -> Verdict | None:
    """Returns the verdict of a preflight that has passed before; None if preflight is due.

    After it has passed the API server refuses changes of what it checked. So a verdict stands even where another
    release of the operator would compute another hash of the same spec.
    """
    passed = before.is_true(ConditionType.PREFLIGHT_PASSED)
    if seen.verdict and (passed or seen.verdict.hash == manifests.preflight_hash(run)):
        return seen.verdict
    return None


def _for_pod(
    seen: Observation, run: RunContext, before: GymTrainingRunStatus, pod: Object | None, wanted: str
) -> PreflightStep:
    if pod is None and seen.missing:
        return _missing(seen, before)
    if pod is None:
        base = (run_config_map(run, None), *network_policies(run), *volume_claims(run, in_use=False))
        return _running("starting the preflight pod", Changes(apply=(*base, manifests.preflight_pod(run))))
    if is_deleting(pod):
        return _running("waiting for an earlier preflight pod to end")
    if noted_images(pod) is None:
        # With which gateway and vLLM its verdict would go together is not known.
        text = "the preflight pod was made by an earlier release of the operator; starting another"
        return _running(text, Changes(delete=(Deletion.of(pod),)))
    if is_over(pod):
        if was_disrupted(pod):
            return _running(
                "the cluster ended the preflight pod; starting another", Changes(delete=(Deletion.of(pod),))
            )
        return _finished(seen, run, before, pod, wanted)

    waits_for = problem(pod) or (seen.missing[0] if seen.missing else "")
    deadline = run.spec.startup_deadline_seconds
    if age_of(pod, seen.now) > deadline:
        why = waits_for or "its containers did not end in time"
        return _failed(
            Reason.PREFLIGHT_ERROR, f"preflight took longer than {deadline} s (startupDeadlineSeconds): {why}"
        )
    return _running(waits_for or "checking the Gym config, the datasets, vLLM's arguments and the trainer's settings")


def _passed(run: RunContext, verdict: Verdict, ignored: tuple[str, ...] = ()) -> PreflightStep:
    rows = sum(file.rows for file in verdict.gym.data.train)
    held_out = sum(file.rows for file in verdict.gym.data.validation)
    data = [f"{rows} rows of training data"] if rows else []
    data += [f"{held_out} rows of validation data"] if held_out else []
    message = ", ".join([f"{len(verdict.gym.servers)} Gym servers", *data])
    if ignored:
        message += f". {', '.join(ignored)} changed after the check and is ignored: restore it, or apply a new run"
    warnings = [*_warnings_of(run.spec), *verdict.gym.warnings, *verdict.trainer.warnings]
    message = _with_warnings(message, warnings)
    condition = true_condition(ConditionType.PREFLIGHT_PASSED, Reason.PREFLIGHT_PASSED, message)
    return PreflightStep(Changes(conditions=(condition,)), verdict=verdict)


def _running(message: str, changes: Changes | None = None) -> PreflightStep:
    conditions = (
        unknown_condition(ConditionType.PREFLIGHT_PASSED, Reason.PREFLIGHT_RUNNING, message),
        true_condition(ConditionType.PROGRESSING, Reason.PREFLIGHT_RUNNING, f"preflight: {message}"),
    )
    said = Changes(conditions=conditions, requeue_after=_POLL_SECONDS)
    return PreflightStep((changes or Changes()).and_then(said))


def _failed(reason: Reason, message: str) -> PreflightStep:
    condition = false_condition(ConditionType.PREFLIGHT_PASSED, reason, message)
    return PreflightStep(Changes(conditions=(condition,)), failure=Failure(reason, message))


def _missing(seen: Observation, before: GymTrainingRunStatus) -> PreflightStep:
    message = "; ".join(seen.missing)
    old = before.condition(ConditionType.PREFLIGHT_PASSED)
    since = to_seconds(old.last_transition_time) if old and old.reason == Reason.PREFLIGHT_ERROR else None
    if since is not None and seen.now - since > MISSING_GRACE_SECONDS:
        return _failed(Reason.PREFLIGHT_ERROR, message)
    conditions = (
        false_condition(ConditionType.PREFLIGHT_PASSED, Reason.PREFLIGHT_ERROR, message),
        false_condition(ConditionType.PROGRESSING, Reason.PREFLIGHT_ERROR, message),
    )
    return PreflightStep(Changes(conditions=conditions, requeue_after=_POLL_SECONDS))


def _finished(
    seen: Observation, run: RunContext, before: GymTrainingRunStatus, pod: Object, wanted: str
) -> PreflightStep:
    output = seen.preflight_output
    if output is None:
        return _running("reading the verdict")
    if output.unread:
        return _unread(seen, run, before, pod, output.unread[0])
    findings: list[Finding] = []
    broken: list[str] = []
    for container, document in (
        (manifests.GYM_CONTAINER, output.gym),
        (manifests.TRAINER_CONTAINER, output.trainer),
        (manifests.INFERENCE_CONTAINER, output.inference),
    ):
        if document is None:
            broken.append(_no_verdict(seen, pod, container))
        else:
            findings += document.findings
    if broken:
        return _failed(Reason.PREFLIGHT_ERROR, "\n".join([*_lines(findings), *dict.fromkeys(broken)]))
    if findings:
        return _failed(Reason.PREFLIGHT_FAILED, "\n".join(_lines(findings)))
    assert output.gym is not None
    assert output.trainer is not None
    return _passed(run, Verdict(wanted, output.gym, output.trainer))


def _unread(
    seen: Observation, run: RunContext, before: GymTrainingRunStatus, pod: Object, container: str
) -> PreflightStep:
    """Waits for the log of a container that ended well; where it is lost, another pod prints its verdict."""
    text = f"the node doesn't give the log of container {container} of pod {name_of(pod)}"
    ended = max(to_seconds(one.finished_at) or seen.now for one in terminated(pod))
    if seen.now - ended <= _LOG_SECONDS:
        return _running(f"reading the verdict: {text}")
    old, deadline = before.condition(ConditionType.PREFLIGHT_PASSED), run.spec.startup_deadline_seconds
    since = to_seconds(old.last_transition_time) if old and old.status == "Unknown" else None
    if since is not None and seen.now - since > deadline:
        message = f"for {deadline} s (startupDeadlineSeconds) no verdict could be read: {text}"
        return _failed(Reason.PREFLIGHT_ERROR, f"{message}. kubectl logs {name_of(pod)} -c {container} says why")
    return _running(f"{text}; starting another", Changes(delete=(Deletion.of(pod),)))


def _no_verdict(seen: Observation, pod: Object, container: str) -> str:
    """Says why a container printed no verdict: it crashed, or an init container before it did."""
    ended = terminated(pod)
    culprit = next((t for t in ended if t.init and t.exit_code != 0), None)
    culprit = culprit or next((t for t in ended if t.container == container), None)
    if culprit is None:
        return problem(pod) or f"container {container} of the preflight pod never ran"
    text = f"container {culprit.container} of the preflight pod ended with exit code {culprit.exit_code}"
    text += f" ({culprit.reason})" if culprit.reason and culprit.reason != "Error" else ""
    tail = seen.log_tails.get((culprit.pod, culprit.container)) or culprit.message
    if not culprit.init and (field := _IMAGES.get(container)) and (needed := _lacks(tail, culprit)):
        text += f": {needed}. Build the image of {field} from gymtrain's image of the operator's release, or remove it"
    return f"{text} and gave no verdict. Its last lines:\n{tail}" if tail else f"{text} and gave no verdict"


def _lacks(tail: str, culprit: Terminated) -> str:
    """Says what an image that isn't ours lacks; empty if the container failed for another reason."""
    if found := _NO_MODULE.search(tail):
        return f"its image has no {found[1]}"
    # The runtime's way to say that there is no such program: nothing of ours has run.
    if culprit.reason in {"StartError", "ContainerCannotRun"} and "python" in culprit.message:
        return "its image has no python"
    return ""


def _lines(findings: Iterable[Finding]) -> list[str]:
    return [f"{finding.where}: {finding.message}" for finding in findings]


def _with_deletions(done: PreflightStep, deletions: tuple[Deletion, ...]) -> PreflightStep:
    return PreflightStep(done.changes.and_then(Changes(delete=deletions)), done.verdict, done.failure)


# ── objects that the spec names ──────────────────────────────────────────────────────────────────


def named_objects(spec: GymTrainingRunSpec, run: str) -> list[tuple[str, str, str]]:
    """Lists kind, name, and field of the spec, of every object that someone else makes and that has to exist for the
    run of that name.

    Secrets are left out: the operator has no right to read them, and the kubelet names a missing one.
    """
    found: list[tuple[str, str, str]] = []
    match model := parse_model_source(spec.model.source):
        case VolumeClaim(claim=claim):
            found.append(("PersistentVolumeClaim", claim, "spec.model.source"))
        case HuggingFace() | ModelImage():
            pass
        case _:
            assert_never(model)
    for place, dataset in spec.used_data.placed():
        source = parse_data_source(dataset.source) if dataset.source else None
        field = f"spec.data.{place}.source"
        match source:
            case VolumeClaim(claim=claim):
                found.append(("PersistentVolumeClaim", claim, field))
            case ConfigMapKey(name=name):
                found.append(("ConfigMap", name, field))
            case GymPath() | VolumePath() | HubDataset() | StoredObject() | None:
                pass
            case _:
                assert_never(source)
    data = spec.data.storage
    if data and data.claim_name:
        found.append(("PersistentVolumeClaim", data.claim_name, "spec.data.storage.claimName"))
    cache = spec.inference.compile_cache
    if cache and cache.claim_name:
        found.append(("PersistentVolumeClaim", cache.claim_name, "spec.inference.compileCache.claimName"))
    checkpoint = spec.trainer.checkpoint
    if checkpoint and checkpoint.claim_name:
        found.append(("PersistentVolumeClaim", checkpoint.claim_name, "spec.trainer.checkpoint.claimName"))
    earlier = spec.reads_from
    if earlier and checkpoint and checkpoint.size and earlier[1].run != run:  # its own is made
        found.append(("PersistentVolumeClaim", names.checkpoint_volume(earlier[1].run), earlier[0]))
    return found


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────


def printed_verdict[D: BaseModel](log: str, kind: type[D]) -> D | None:
    """Reads the verdict that a container of the preflight pod printed in its log; None if it printed none."""
    for line in reversed(log.splitlines()):
        # Libraries print without a newline at the end: the mark may stand in the middle of a line.
        _, mark, text = line.partition(PREFLIGHT_MARK)
        if mark:
            try:
                return kind.model_validate_json(text)
            except ValidationError:
                return None
    return None


def stored_verdict(children: Children, run: str) -> Verdict | None:
    """Reads the verdict that the ConfigMap keeps; None if there is none that can be read, and preflight is due
    again."""
    stored = children.get("ConfigMap", names.gym_config(run))
    text = ((stored or {}).get("data") or {}).get(PREFLIGHT_KEY)
    if not text:
        return None
    try:
        document: dict[str, Any] = json.loads(text)
        gym = GymPreflight.model_validate(document["gym"])
        trainer = TrainerPreflight.model_validate(document["trainer"])
        return Verdict(str(document["hash"]), gym, trainer)
    except (ValueError, KeyError, TypeError, ValidationError):
        return None


# ── warnings: what works, and costs its user something ───────────────────────────────────────────


def split_message(message: str) -> tuple[str, str]:
    """Splits what PreflightPassed says: the message, and the warnings without their marks, one a line."""
    said, *warnings = message.split(_WARNING_MARK)
    return said, "\n".join(warnings)


def _with_warnings(message: str, warnings: Iterable[Finding]) -> str:
    """Puts the warnings below the condition's message."""
    return message + "".join(f"{_WARNING_MARK}{warning.where}: {warning.message}" for warning in warnings)


def _warnings_of(spec: GymTrainingRunSpec) -> list[Finding]:
    """Lists the warnings that the spec alone tells, in the order of its fields; the others are of the preflight pod's
    containers. They take part in no hash: the fields may change in a run."""
    return [*_cache_on_one_node(spec), *_kept_model(spec), *_deleted_model(spec)]


def _cache_on_one_node(spec: GymTrainingRunSpec) -> list[Finding]:
    cache, replicas = spec.inference.compile_cache, spec.inference.replicas
    if cache is None or cache.size is None or replicas == 1 or "ReadWriteMany" in cache.access_modes:
        return []
    message = (
        f"all {replicas} vLLM pods mount the volume, and ReadWriteOnce works on one node only: those on other nodes "
        "don't start. Set accessModes: [ReadWriteMany] and a storageClassName that supports it, or keep the pods on "
        "one node with a nodeSelector in spec.inference.template"
    )
    return [Finding(where="spec.inference.compileCache.accessModes", message=message)]


def _kept_model(spec: GymTrainingRunSpec) -> list[Finding]:
    if spec.trainer.checkpoint is not None:
        return []
    message = (
        "is not set, so the trained model isn't kept: the final weights are deleted with the run's pods, and another "
        "attempt starts from step 0. Set size (for a new volume) or claimName (an existing PersistentVolumeClaim)"
    )
    return [Finding(where="spec.trainer.checkpoint", message=message)]


def _deleted_model(spec: GymTrainingRunSpec) -> list[Finding]:
    checkpoint, ttl = spec.trainer.checkpoint, spec.ttl_seconds_after_finished
    if ttl is None or checkpoint is None or checkpoint.size is None or checkpoint.retain == "Keep":
        return []
    message = (
        f"deletes the run {ttl} s after its end, and with it the volume that spec.trainer.checkpoint.size makes: the "
        "only copy of the trained model. Set spec.trainer.checkpoint.retain to Keep, or leave this out"
    )
    return [Finding(where="spec.ttlSecondsAfterFinished", message=message)]
