"""Errors of the vLLM side.

InferenceError
├── ArgumentsError      a user's vLLM argument contradicts what the run depends on
├── GroupError          a pod of a server on several nodes can't find its group
├── TokenError          the pod has no token for its control routes
├── FetchError          the weights couldn't be fetched or failed verification; the server keeps what it has
└── LoadError           verified weights didn't fit the model; the server must not serve
"""


class InferenceError(Exception):
    """Base class of the errors."""


class ArgumentsError(InferenceError):
    """`spec.inference.args` contains an argument that only the operator sets."""


class GroupError(InferenceError):
    """What says which pod of a server this is, is missing, or its leader doesn't answer, or can't listen."""


class TokenError(InferenceError):
    """The file with the run's token is missing or empty."""


class FetchError(InferenceError):
    """A manifest or file is missing, late, damaged or of another version. Nothing was loaded."""


class LoadError(InferenceError):
    """The weights are not the model's: some tensors were missing or of another shape."""
