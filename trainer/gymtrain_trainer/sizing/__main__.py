"""`python -m gymtrain_trainer.sizing`."""

import sys

from gymtrain_trainer.sizing.command import main

if __name__ == "__main__":
    sys.exit(main())
