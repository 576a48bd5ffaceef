"""What the API server refused of a run, so that it is asked again after pauses that grow, and not at each look."""

from dataclasses import dataclass, replace

from gymtrain_operator.manifests.hashes import digest
from gymtrain_operator.reconcile.observation import Object, Rejection, name_of

FIRST_PAUSE_SECONDS = 10.0
MAX_PAUSE_SECONDS = 60.0


@dataclass(frozen=True)
class _Refused:
    """One object. `content` is the hash of what was refused: another content is tried at once."""

    rejection: Rejection
    content: str
    tries: int
    again_at: float


class Refusals:
    """Refusals of one run, by kind and name. All of it may be lost at any time."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str], _Refused] = {}

    def standing(self, manifest: Object, now: float) -> Rejection | None:
        """The refusal of this very object, while it is too early to try again."""
        known = self._known(manifest)
        if known is None or now >= known.again_at:
            return None
        return replace(known.rejection, next_in=known.again_at - now)

    def note(self, manifest: Object, rejection: Rejection, now: float) -> Rejection:
        """The refusal with the pause before the next try: 10, 20, 40, 60 seconds."""
        known = self._known(manifest)
        tries = known.tries + 1 if known else 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 10), MAX_PAUSE_SECONDS)
        told = replace(rejection, next_in=pause)
        self._refused[manifest["kind"], name_of(manifest)] = _Refused(told, digest(manifest), tries, now + pause)
        return told

    def forget(self, manifest: Object) -> None:
        """The API server took the object."""
        self._refused.pop((manifest["kind"], name_of(manifest)), None)

    def _known(self, manifest: Object) -> _Refused | None:
        known = self._refused.get((manifest["kind"], name_of(manifest)))
        return known if known and known.content == digest(manifest) else None
