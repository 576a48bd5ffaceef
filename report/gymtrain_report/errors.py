"""Errors of the report."""


class ReportError(Exception):
    """What is wrong, and what to do."""
