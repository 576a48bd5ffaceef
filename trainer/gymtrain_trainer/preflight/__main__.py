"""`python -m gymtrain_trainer.preflight`."""

import os
import sys

from gymtrain_trainer.preflight.main import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # torch's teardown costs a second and has nothing to save
