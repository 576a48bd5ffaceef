"""`spec.resumeFrom`: the checkpoint folder of an earlier run, such as `workplace` or `workplace/checkpoint-120`.

| part | meaning |
|---|---|
| `RUN` | the earlier run, and the name of its folder on the volume |
| `/previous-N` | what that folder held before another run of the same name began in it |
| `/checkpoint-STEP` | one checkpoint; without it, the newest whole one |
| `/best` | the one with the highest validation reward, which `evaluation.keepBest` keeps |
"""

import re
from dataclasses import dataclass
from typing import Self

from gymtrain_api.errors import SourceError

# The CRD has the same expression, so a path that leads out of the volume is refused at apply time.
RESUME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?(/previous-[0-9]+)?(/checkpoint-[0-9]+|/best)?$"

_PARTS = re.compile(
    r"^(?P<run>[^/]+)(?:/(?P<previous>previous-[0-9]+))?(?:/checkpoint-(?P<step>[0-9]+)|/(?P<best>best))?$"
)


@dataclass(frozen=True)
class ResumeFrom:
    """The parsed `spec.resumeFrom`.

    Attributes:
        previous: folder inside the run's folder; empty for the run's own checkpoints.
        step: None for the newest checkpoint, and for the best.
        best: the best one is meant.
    """

    run: str
    previous: str = ""
    step: int | None = None
    best: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `spec.resumeFrom`.

        Raises:
            SourceError: the string has another form.
        """
        parts = _PARTS.match(text) if re.match(RESUME_PATTERN, text) else None
        if parts is None:
            raise SourceError(
                f"{text!r} must be RUN, RUN/checkpoint-STEP or RUN/best, with /previous-N after RUN for what was "
                "set aside"
            )
        step = int(parts["step"]) if parts["step"] else None
        return cls(parts["run"], parts["previous"] or "", step, best=parts["best"] is not None)

    @property
    def folder(self) -> str:
        """The folder of the checkpoints, relative to the volume's root."""
        return f"{self.run}/{self.previous}" if self.previous else self.run

    def is_own(self, run: str) -> bool:
        """Whether a run of that name continues in its own folder, as if it had never ended."""
        return self.run == run and not self.previous
