"""`python -m gymtrain_trainer`."""

import os
import sys

from gymtrain_trainer.main import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and the teardown of torch have nothing left to save, and one that hangs would keep the pod alive.
    os._exit(code)
