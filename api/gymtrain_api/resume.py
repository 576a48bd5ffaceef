"""`spec.resumeFrom`: the checkpoint folder of an earlier run, such as `workplace` or `workplace/checkpoint-120`.

| part | meaning |
|---|---|
| `RUN` | the earlier run, and the name of its folder on the volume |
| `/previous-N` | what that folder held before another run of the same name began in it |
| `/checkpoint-STEP` | one checkpoint; without it, the newest whole one |
"""

import re
from dataclasses import dataclass
from typing import Self

from gymtrain_api.errors import SourceError

# The CRD has the same expression, so a path that leads out of the volume is refused at apply time.
RESUME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?(/previous-[0-9]+)?(/checkpoint-[0-9]+)?$"

_PARTS = re.compile(r"^(?P<run>[^/]+)(?:/(?P<previous>previous-[0-9]+))?(?:/checkpoint-(?P<step>[0-9]+))?$")


@dataclass(frozen=True)
class ResumeFrom:
    """The parsed `spec.resumeFrom`.

    Attributes:
        previous: folder inside the run's folder; empty for the run's own checkpoints.
        step: None for the newest checkpoint.
    """

    run: str
    previous: str = ""
    step: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `spec.resumeFrom`.

        Raises:
            SourceError: the string has another form.
        """
        parts = _PARTS.match(text) if re.match(RESUME_PATTERN, text) else None
        if parts is None:
            raise SourceError(
                f"{text!r} must be RUN, RUN/checkpoint-STEP, RUN/previous-N, or RUN/previous-N/checkpoint-STEP"
            )
        return cls(parts["run"], parts["previous"] or "", int(parts["step"]) if parts["step"] else None)

    @property
    def folder(self) -> str:
        """The folder of the checkpoints, relative to the volume's root."""
        return f"{self.run}/{self.previous}" if self.previous else self.run

    def is_own(self, run: str) -> bool:
        """Whether a run of that name continues in its own folder, as if it had never ended."""
        return self.run == run and not self.previous
