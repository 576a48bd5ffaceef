"""The run's token, which vLLM's control routes ask for and the trainer sends (decision 42).

It is mounted into the containers that need it and into no other of the same pods: init containers may run others' code.
"""

from gymtrain_api import labels, names, wiring
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.objects import metadata

_VOLUME = "run-token"

TOKEN_MOUNT: Object = {"name": _VOLUME, "mountPath": wiring.RUN_TOKEN_DIR, "readOnly": True}
TOKEN_ENV: Object = {"name": wiring.ENV_RUN_TOKEN_FILE, "value": wiring.RUN_TOKEN_FILE}


def token_secret(run: RunContext) -> Object:
    """Builds the Secret, whose value is made when it is created. The operator can't read it, so it is named by the
    resource's uid. It has vLLM's role: it is due when vLLM's pods are."""
    meta = metadata(run, names.run_token(run.name, run.uid), labels.Role.INFERENCE)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "stringData": {"token": ""}}


def token_volume(run: RunContext, *, optional: bool = False) -> Object:
    """Returns the volume. `optional`: the pod starts without it, too, in a run whose vLLM was made by a release that
    had no token."""
    secret: Object = {"secretName": names.run_token(run.name, run.uid), "defaultMode": 0o440}
    return {"name": _VOLUME, "secret": secret | ({"optional": True} if optional else {})}
