"""Errors of the sandbox provider.

SandboxError               (GymImageError)
├── SandboxSettingsError   the provider doesn't know its broker
├── BrokerRefusedError     the broker said no, or wasn't there for too long
├── SandboxUnavailableError  (also NeMo Gym's SandboxCreateError) no sandbox came
├── SandboxLostError       the sandbox is gone, or the connection broke while a command ran
└── SandboxFileError       a file can't be written or read there
"""

from nemo_gym.sandbox import SandboxCreateError

from gymtrain_gym.errors import GymImageError


class SandboxError(GymImageError):
    """Base of the provider's errors."""


class SandboxSettingsError(SandboxError):
    """Address or token of the broker is missing, or a setting makes no sense."""


class BrokerRefusedError(SandboxError):
    """The broker answered with an error; `status` is 0 where it didn't answer at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class SandboxUnavailableError(SandboxError, SandboxCreateError):  # type: ignore[misc]  # nemo_gym has no types here
    """No sandbox: refused, failed to start, or not ready before the deadline."""


class SandboxLostError(SandboxError):
    """The sandbox went away. Raised instead of given as a result: agents go on after a bad result, and the task would
    be scored 0 for a fault that isn't the policy's."""

    error_type = "sandbox"  # what NeMo Gym's providers call it


class SandboxFileError(SandboxError):
    """A file can't be written to or read from the sandbox."""
