"""Errors of the Gym image.

GymImageError
├── ConfigFileError    the config file or the environment of a server pod is wrong
├── ServerStartError   the server could not be started
├── DatasetError       a dataset can't be made or read
├── FetchError         a dataset can't be fetched now
└── SandboxError       of the sandbox provider: gymtrain_gym.sandbox.errors
"""


class GymImageError(Exception):
    """Base: its text is meant for the user."""


class ConfigFileError(GymImageError):
    """The Gym config file, or the name of the server in it, can't be used."""


class ServerStartError(GymImageError):
    """The server can't listen or can't be loaded."""


class DatasetError(GymImageError):
    """A dataset can't be made or read; the text says what was expected."""


class FetchError(GymImageError):
    """A dataset can't be fetched for a reason that may pass, or that another volume removes."""
