"""What pages of the documentation show. Imports nothing that an image lacks, as tests run in those too."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def yaml_blocks(page: str | Path) -> list[str]:
    """The blocks of YAML of a page, by its path in the repository, but for those with a title, which name a file."""
    return re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
