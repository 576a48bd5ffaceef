"""The trainer's process on a machine with an older torch and Python: `python3 -m benchmarks.gpu.chain.trainer`."""

import os
import sys

if not hasattr(os, "process_cpu_count"):  # Python 3.12
    setattr(os, "process_cpu_count", os.cpu_count)  # noqa: B010 - its type knows 3.13 only

from benchmarks.gpu.attention import allow_older_torch
from gymtrain_trainer.main import main

if __name__ == "__main__":
    allow_older_torch()
    code = main()
    sys.stdout.flush()
    os._exit(code)
