"""`spec.resumeFrom`: the checkpoint folder of an earlier run, such as `workplace` or `workplace/checkpoint-120`.

| part | meaning |
|---|---|
| `RUN` | the earlier run, whose folder on the volume has its name |
| `/previous-N` | what that folder held before yet another run of the name began in it |
| `/checkpoint-STEP` | one checkpoint; left out, the newest that is whole |
"""

import re
from dataclasses import dataclass
from typing import Self

from gymtrain_api.errors import SourceError

# The same expression stands in the CRD, so a path that leads out of the volume is refused at apply time.
RESUME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?(/previous-[0-9]+)?(/checkpoint-[0-9]+)?$"

_PARTS = re.compile(r"^(?P<run>[^/]+)(?:/(?P<previous>previous-[0-9]+))?(?:/checkpoint-(?P<step>[0-9]+))?$")


@dataclass(frozen=True)
class ResumeFrom:
    """The parsed form.

    Attributes:
        previous: folder below the run's; empty for what the run itself left.
        step: None for the newest checkpoint.
    """

    run: str
    previous: str = ""
    step: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Raises:
            SourceError: the string has another form.
        """
        parts = _PARTS.match(text) if re.match(RESUME_PATTERN, text) else None
        if parts is None:
            raise SourceError(
                f"{text!r} is none of RUN, RUN/checkpoint-STEP, RUN/previous-N, RUN/previous-N/checkpoint-STEP"
            )
        return cls(parts["run"], parts["previous"] or "", int(parts["step"]) if parts["step"] else None)

    @property
    def folder(self) -> str:
        """The folder of the checkpoints, from the volume's root."""
        return f"{self.run}/{self.previous}" if self.previous else self.run

    def is_own(self, run: str) -> bool:
        """Whether a run of that name goes on in its own folder, as if it had never ended."""
        return self.run == run and not self.previous
