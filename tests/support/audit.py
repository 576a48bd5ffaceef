"""The API server's audit log: who wrote what, and whether they were the leader.

Writers are told apart by their tokens: those of one ServiceAccount differ in their ids.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

POLICY: Mapping[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
    "rules": [
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
        },
        {"level": "None"},
    ],
}
"""What ServiceAccounts write, once it is answered."""

_TOKEN_ID = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True)
class Write:
    """One request that the API server carried out.

    Attributes:
        writer: the id of the token.
        target: resource, namespace, name and subresource; the name is empty where the API server chose it.
        asked: when the request came in: seconds since the epoch, to the microsecond.
        done: when it was answered.
    """

    writer: str
    target: tuple[str, str, str, str]
    asked: float
    done: float

    @property
    def is_lease(self) -> bool:
        """Whether it is the leader's: taken, renewed or given back."""
        return self.target[0] == "leases"


def read_writes(log: Path) -> list[Write]:
    """All writes so far, by the time at which they were done."""
    found = []
    with log.open() as lines:
        for line in lines:
            if line.endswith("\n"):  # the last line may still be on its way
                event = json.loads(line)
                if event["responseStatus"].get("code", 0) < 300:
                    found.append(_write(event))
    return sorted(found, key=lambda write: write.done)


def writes_of_two(writes: Iterable[Write]) -> list[tuple[Write, Write]]:
    """Each write of somebody else than the leader, with the write by which another had become the leader.

    Who wrote the Lease last is the leader. A write counts until its answer, and a change of leaders from its arrival:
    so a write that went on while the Lease was taken is found as well.
    """
    found = []
    ordered = sorted(writes, key=lambda write: write.done)
    leases = [write for write in ordered if write.is_lease]
    taken = [
        lease for before, lease in pairwise([None, *leases]) if lease and lease.writer != (before and before.writer)
    ]
    moments = [lease.asked for lease in taken]
    for write in ordered:
        if write.is_lease:
            continue
        terms = bisect_right(moments, write.done)
        if terms and taken[terms - 1].writer != write.writer:
            found.append((write, taken[terms - 1]))
    return found


def _write(event: Mapping[str, Any]) -> Write:
    reference = event["objectRef"]
    keys = ("resource", "namespace", "name", "subresource")
    resource, namespace, name, subresource = (str(reference.get(key, "")) for key in keys)
    (token,) = event["user"]["extra"][_TOKEN_ID]
    asked, done = (
        datetime.fromisoformat(event[key]).timestamp() for key in ("requestReceivedTimestamp", "stageTimestamp")
    )
    return Write(token, (resource, namespace, name, subresource), asked, done)
