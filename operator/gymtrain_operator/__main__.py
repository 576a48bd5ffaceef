"""`python -m gymtrain_operator`."""

import sys

from gymtrain_operator.main import main

sys.exit(main())
