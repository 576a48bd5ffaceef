"""Errors of the interface package.

ApiError
├── SourceError      a `source:` string that names nothing we can read
├── DocumentError    a document between two parts of a run that doesn't parse
└── SchemaError      the types use something that the CRD generator does not know
"""


class ApiError(ValueError):
    """Base of every error that this package raises."""


class SourceError(ApiError):
    """A model or data source is malformed; the message says which forms exist."""


class DocumentError(ApiError):
    """A document that one part of a run wrote can't be read by another (see `wiring`)."""


class SchemaError(ApiError):
    """The types use a construct that the CRD generator has no agreed form for."""
