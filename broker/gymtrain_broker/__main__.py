"""`python -m gymtrain_broker`."""

import sys

from gymtrain_broker.main import main

if __name__ == "__main__":
    sys.exit(main())
