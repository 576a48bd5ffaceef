"""kopf, tuned: it watches and nothing else.

- watches end and begin anew every few minutes and are given up when they fall silent, since a stalled watch
  looks like a quiet cluster;
- a watch that is refused is asked for again without end: a namespace that was deleted with its Role must not end the
  process, which looks after the others;
- pods, Deployments and Jobs of others never get here: the API server filters by label;
- nothing is stored in objects, nothing is posted.
"""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import kopf

from gymtrain_api import labels
from gymtrain_operator.handlers import CHILDREN


class _Nothing(kopf.DiffBaseStorage):
    """kopf's last-seen state would double every object in an annotation; a level-based reconcile needs none."""

    def fetch(self, *, body: kopf.Body) -> Any:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        return


class _WithoutEnd:
    """Seconds between the tries of a request. After the last of a finite list kopf ends the whole process."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 2.0, 4.0, 8.0, 16.0), repeat(30.0))


def settings() -> kopf.OperatorSettings:
    """kopf's settings for this operator."""
    tuned = kopf.OperatorSettings()
    tuned.posting.enabled = False
    tuned.scanning.disabled = True  # saves the right to read all CRDs and namespaces
    tuned.peering.standalone = True
    tuned.persistence.diffbase_storage = _Nothing()
    tuned.watching.server_timeout = 300
    tuned.watching.client_timeout = 330
    tuned.watching.connect_timeout = 15
    tuned.watching.inactivity_timeout = 75
    tuned.watching.reconnect_backoff = 1
    tuned.watching.chunk_size = 50  # without it kopf reads all objects of a kind as one document
    tuned.networking.request_timeout = 30
    tuned.networking.connect_timeout = 15
    tuned.networking.error_backoffs = _WithoutEnd()
    # A worker stays for each object that had an event until it was idle for this long, and holds the object; the
    # others wait, whole, until there is room for them. The handlers take no time, so workers can leave soon.
    tuned.queueing.worker_limit = 100
    tuned.queueing.idle_timeout = 0.01
    for group, version, plural in CHILDREN:
        selector = f"{labels.MANAGED_BY}={labels.MANAGED_BY_VALUE},{labels.RUN}"
        tuned.watching.label_selectors[group, version, plural] = selector
    return tuned
