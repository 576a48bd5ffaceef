"""What a run keeps when the operator is upgraded under it: its images, and the names of its objects.

Images: one release from preflight to the last attempt (decision 21).

    preflight starts     they follow from the spec and the operator's defaults; its pod keeps note of all of them
    preflight passes     they are recorded in the status, and hold from then on
    no record            (the status was lost, or the run is of an earlier release) the pod's note, then what runs

Names: an upgrade never makes a second set of a run's objects.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from gymtrain_api import coscheduling, labels, names, wiring
from gymtrain_api.status import GymTrainingRunStatus, Images
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests import broker, gateway, gym, inference, trainer
from gymtrain_operator.manifests.context import KeptNames, RunContext
from gymtrain_operator.manifests.network import around_scraped
from gymtrain_operator.manifests.preflight import preflight_hash
from gymtrain_operator.reconcile.changes import Changes, Deletion
from gymtrain_operator.reconcile.observation import (
    Children,
    Observation,
    Verdict,
    attempt_of,
    is_deleting,
    labels_of,
    name_of,
)


def recorded_images(
    seen: Observation, run: RunContext, verdict: Verdict | None, before: GymTrainingRunStatus
) -> Images:
    """Returns the images that the run has to keep; what is left out is free. `verdict` is that of a preflight that has
    passed before, if one has."""
    wanted = verdict.hash if verdict else preflight_hash(run)
    pod = seen.children.get("Pod", names.preflight(run.name, wanted))
    noted = noted_images(pod) if pod else None
    if verdict is None:
        return noted or Images()
    known = [before.images, noted, _in_use(seen, run, verdict)]
    values = [images.model_dump() for images in known if images is not None]
    return Images(**{name: next((v[name] for v in values if v[name]), None) for name in Images.model_fields})


def noted_images(pod: Object) -> Images | None:
    """Reads the images that a preflight pod keeps note of; None on one that an earlier release made."""
    text = (pod["metadata"].get("annotations") or {}).get(labels.IMAGES)
    try:
        return Images.model_validate_json(text) if text else None
    except ValidationError:
        return None


def _in_use(seen: Observation, run: RunContext, verdict: Verdict) -> Images:
    """Returns the images of what runs, for a run of a release that recorded none."""
    deployments = {
        "gateway": (names.gateway(run.name), gateway.CONTAINER),
        "broker": (names.broker(run.name), broker.CONTAINER),
    }
    live = {part: seen.children.get("Deployment", name) for part, (name, _) in deployments.items()}
    jobs = sorted(seen.children.of("Job"), key=attempt_of)
    return Images(
        gym=next(_gym_images(seen, run, verdict), None),
        # No run of such a release has a command of its own.
        trainer=_image(jobs[-1], trainer.CONTAINER) if jobs and run.spec.trainer.command is None else None,
        sandbox=next(_values(live["broker"], broker.CONTAINER, wiring.ENV_SANDBOX_IMAGE), None),
        inference=_image(seen.children.vllm(run.name), inference.CONTAINER),
        **{part: _image(live[part], container) for part, (_, container) in deployments.items()},
    )


def _gym_images(seen: Observation, run: RunContext, verdict: Verdict) -> Iterator[str]:
    """Returns the images of the Gym servers for which the spec names none."""
    for server in (wiring.HEAD_SERVER, *(one.name for one in verdict.gym.servers)):
        own = run.spec.gym.servers.get(server)
        image = _image(seen.children.get("Deployment", run.gym_server(server)), gym.CONTAINER)
        if image and not (own and own.image):
            yield image


def _image(manifest: Object | None, container: str) -> str | None:
    return next((str(one["image"]) for one in _containers(manifest, container) if one.get("image")), None)


def _values(manifest: Object | None, container: str, variable: str) -> Iterator[str]:
    for one in _containers(manifest, container):
        yield from (str(env["value"]) for env in one.get("env") or [] if env["name"] == variable and env.get("value"))


def _containers(manifest: Object | None, name: str) -> list[Object]:
    if manifest is None:
        return []
    return [one for one in _template(manifest)["spec"]["containers"] if one["name"] == name]


def _template(manifest: Object) -> Object:
    spec = manifest["spec"]
    found: Object = (
        spec["leaderWorkerTemplate"]["leaderTemplate"] if "leaderWorkerTemplate" in spec else spec["template"]
    )
    return found


def kept_names(children: Children, run: str) -> KeptNames:
    """Returns the names as the run's Services have them, which stay until the run is deleted, also while it is
    suspended."""
    services = [one for one in children.of("Service") if not is_deleting(one)]
    servers = {labels_of(one)[labels.SERVER]: name_of(one) for one in services if labels.SERVER in labels_of(one)}
    # Policies are written before Services.
    open_gym = bool(servers) and children.get("NetworkPolicy", names.gym_network_policy(run)) is None
    service = next((one for one in services if name_of(one) == names.broker(run)), None)
    if service is None:
        return KeptNames(servers, open_gym=open_gym)
    notes = service["metadata"].get("annotations") or {}
    # Before it was noted the identity had the name of the Service.
    return KeptNames(servers, notes.get(labels.BROKER_IDENTITY) or names.broker(run), open_gym)


def gang_scheduler(children: Children, run: RunContext) -> str:
    """Returns the scheduler that places the run's pods together. Where vLLM runs without the group the run keeps to
    that: the trainer's next pods alone would never be as many as the group wants."""
    live = children.vllm(run.name)
    if live is not None:
        of_pods = (_template(live).get("metadata") or {}).get("labels") or {}
        if of_pods.get(coscheduling.POD_GROUP_LABEL) != names.pod_group(run.name):
            return ""
    return run.defaults.gang_scheduler


def outdated_policies(children: Children, run: RunContext) -> Changes:
    """Deletes the NetworkPolicy that had the run's own name, once the one that took its place is there; and the one for
    scrapers, once there are none."""
    old, new, scraped = (
        children.get("NetworkPolicy", name)
        for name in (run.name, names.network_policy(run.name), names.metrics_network_policy(run.name))
    )
    gone = [old] if old is not None and new is not None else []
    if scraped is not None and around_scraped(run) is None:
        gone.append(scraped)
    return Changes(delete=tuple(Deletion.of(one) for one in gone if not is_deleting(one)))
