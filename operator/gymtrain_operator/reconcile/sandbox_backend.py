"""The backend of a run's sandboxes: chosen once, by what the cluster supports, and kept while the broker exists.

That agent-sandbox's kinds are served proves little: its chart installs them without a controller that knows them
(controller.extensions is false there). So an empty SandboxWarmPool is made, and its controller has to write a status.
"""

from dataclasses import dataclass
from typing import cast

from gymtrain_api import agent_sandbox, labels, names
from gymtrain_api.sandboxes import BACKENDS, SandboxBackend
from gymtrain_api.times import to_seconds
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.broker import sandbox_probe
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.reconcile.observation import AgentSandbox, Observation, is_deleting, name_of

PROBE_SECONDS = 15.0
"""How long the controller may take for its first status."""

MISSING = (
    f"the cluster does not serve {agent_sandbox.CLAIM}, {agent_sandbox.POOL} and {agent_sandbox.TEMPLATE} of "
    f"{agent_sandbox.API_VERSION}"
)
INSTALL = (
    "install agent-sandbox v1 with its extensions (https://agent-sandbox.sigs.k8s.io; with its chart set "
    "controller.extensions=true), or set spec.sandboxes.backend: Pod"
)


@dataclass(frozen=True)
class BackendChoice:
    """What was chosen.

    Attributes:
        backend: None while it isn't known.
        why: for a person; while it isn't known, what is waited for.
        probe: to write, to find out.
    """

    backend: SandboxBackend | None
    why: str
    probe: tuple[Object, ...] = ()


def choose_backend(seen: Observation, run: RunContext) -> BackendChoice:
    """Chooses the backend of a run with sandboxes."""
    assert run.spec.sandboxes is not None
    wanted, offer = run.spec.sandboxes.backend, seen.agent_sandbox or AgentSandbox(served=False)
    live = seen.children.get("Deployment", names.broker(run.name))
    if live is not None and not is_deleting(live):
        return _kept(live, restarts=_restarts(run))
    if wanted == "Pod":
        return BackendChoice("Pod", "spec.sandboxes.backend says so")
    if wanted == "Auto" and _restarts(run):
        return BackendChoice("Pod", "only pods can be reused in place (reuse: Restart)")
    if not offer.served or offer.forbidden:
        lack = MISSING if not offer.served else f"the operator may not use agent-sandbox: {offer.forbidden}"
        return BackendChoice("Pod", lack) if wanted == "Auto" else BackendChoice(None, f"{lack}: {INSTALL}")
    return _proven(seen, run, offer.probe, wanted)


def _restarts(run: RunContext) -> bool:
    assert run.spec.sandboxes is not None
    return any(pool.reuse == "Restart" for pool in run.spec.sandboxes.warm_pools)


def _kept(live: Object, *, restarts: bool) -> BackendChoice:
    notes = live["metadata"].get("annotations") or {}
    backend = notes.get(labels.SANDBOX_BACKEND)
    if backend not in BACKENDS:
        return BackendChoice("Pod", "the broker's release has no other backend")
    why = str(notes.get(labels.SANDBOX_BACKEND_REASON) or "")
    if backend != "Pod" and restarts:  # the pools changed since
        why += "; reuse: Restart of a warm pool is ignored, because only pods support it"
    return BackendChoice(cast(SandboxBackend, backend), why)


def _proven(seen: Observation, run: RunContext, probe: Object | None, wanted: str) -> BackendChoice:
    to_write = (sandbox_probe(run),) if probe is None else ()
    if probe is not None and (probe.get("status") or {}).get("observedGeneration"):
        why = "agent-sandbox's controller answers" if wanted == "Auto" else "spec.sandboxes.backend says so"
        return BackendChoice("AgentSandbox", why)
    name = names.sandbox_probe(run.name) if probe is None else name_of(probe)
    made = to_seconds(probe["metadata"].get("creationTimestamp")) if probe else None
    if made is None or seen.now - made <= PROBE_SECONDS:
        return BackendChoice(
            None, f"agent-sandbox's controller has not answered yet ({agent_sandbox.POOL} {name})", to_write
        )
    lack = f"agent-sandbox is installed, but its controller leaves {agent_sandbox.POOL} {name} without a status"
    return BackendChoice("Pod", lack) if wanted == "Auto" else BackendChoice(None, f"{lack}: {INSTALL}")
