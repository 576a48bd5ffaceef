"""The trainer's process on a machine with an older torch and Python: `python3 -m benchmarks.gpu.chain.trainer`."""

import os
import sys

from dev.gpu.older_versions import allow_older_python, allow_older_torch, allow_older_torchrun
from gymtrain_trainer.main import main

if __name__ == "__main__":
    allow_older_python()
    allow_older_torch()
    allow_older_torchrun("benchmarks.gpu.chain.trainer")
    code = main()
    sys.stdout.flush()
    os._exit(code)
