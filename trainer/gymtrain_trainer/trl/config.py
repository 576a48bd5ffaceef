"""TRL without vLLM beside it, for a process that neither serves nor trains.

`trl.experimental.async_grpo` imports vLLM where it is installed, as in the trainer's image: 5 s of 30 s (CPU time, TRL
1.16 and vLLM 0.32). Preflight stands between `kubectl apply` and the first pod.
"""

import os
import sys
from types import ModuleType
from typing import cast


def leave_out_vllm() -> None:
    """Makes vLLM look absent in this process, by the way that importlib documents for it: None in sys.modules.

    Without effect once TRL is imported.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    sys.modules.setdefault("vllm", cast(ModuleType, None))
