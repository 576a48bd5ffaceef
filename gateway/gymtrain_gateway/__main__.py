"""`python -m gymtrain_gateway`."""

import sys

from gymtrain_gateway.main import main

if __name__ == "__main__":
    sys.exit(main())
