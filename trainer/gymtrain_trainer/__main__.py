"""`python -m gymtrain_trainer`."""

import os
import sys

from gymtrain_trainer.main import main

code = main()
sys.stdout.flush()
sys.stderr.flush()
# Threads of HTTP clients and torch's teardown have nothing left to save, and one that hangs would keep the pod alive.
os._exit(code)
