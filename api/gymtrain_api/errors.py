"""Errors of the interface package.

ApiError
├── SourceError      a `source:` string has an unknown form
├── DocumentError    a document between two parts of a run can't be parsed
└── SchemaError      the types use a construct that the CRD generator doesn't know
"""


class ApiError(ValueError):
    """Base class of the errors in this package."""


class SourceError(ApiError):
    """A model or data source is malformed. The message lists the valid forms."""


class DocumentError(ApiError):
    """A document that one part of a run wrote can't be read by another (see `wiring`)."""


class SchemaError(ApiError):
    """The types use a construct that the CRD generator doesn't know."""
