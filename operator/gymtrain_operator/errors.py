"""Errors of the operator.

OperatorError
├── BadSelectorError        no label selector of namespaces
├── LostLeaseError          another replica may act by now
├── ForeignObjectError      someone else's object has a name that the run needs
└── ProbeError              a pod of a run didn't answer, or not as agreed
    └── OversizedAnswerError    its answer is too long

What the API server answers are `gymtrain_kube.errors`.
"""


class OperatorError(Exception):
    """Base of every error that this package raises."""


class BadSelectorError(OperatorError):
    """What should pick the namespaces is no label selector. The process ends."""


class LostLeaseError(OperatorError):
    """The Lease couldn't be renewed in time, so another replica may act by now. The process ends."""


class ForeignObjectError(OperatorError):
    """An object that isn't the run's has a name that the run needs."""


class ProbeError(OperatorError):
    """A pod's HTTP answer is missing or no document that we know."""


class OversizedAnswerError(ProbeError):
    """A pod's HTTP answer is longer than any that it should give."""
