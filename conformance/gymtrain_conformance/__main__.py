"""`python -m gymtrain_conformance`."""

import sys

from gymtrain_conformance.main import main

if __name__ == "__main__":
    sys.exit(main())
