"""TRL's own AsyncGRPOConfig, loaded without the trainer beside it.

`trl.experimental.async_grpo` imports trainer, datasets and (where installed) vLLM: 12 to 16 s. The class itself needs
4 s. Preflight stands between `kubectl apply` and the first pod, so it takes the class from its own file.
"""

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

_PACKAGE = "trl.experimental.async_grpo"
_MODULE = f"{_PACKAGE}.async_grpo_config"


def quick_config_class() -> type[Any]:
    """AsyncGRPOConfig. Only for processes that don't train: the package stays half loaded."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    if _PACKAGE not in sys.modules:
        parent = importlib.import_module("trl.experimental")
        folder = Path(parent.__path__[0]) / "async_grpo"
        if (folder / "async_grpo_config.py").is_file():
            package = types.ModuleType(_PACKAGE)
            package.__path__ = [str(folder)]
            sys.modules[_PACKAGE] = package
            try:
                return _class(importlib.import_module(_MODULE))
            except (ImportError, AttributeError):  # another layout: the long way below works with any
                for name in [name for name in sys.modules if name.startswith(_PACKAGE)]:
                    del sys.modules[name]
    return _class(importlib.import_module(_PACKAGE))


def _class(module: types.ModuleType) -> type[Any]:
    found: type[Any] = module.AsyncGRPOConfig
    return found
