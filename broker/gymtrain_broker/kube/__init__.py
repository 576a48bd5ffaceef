"""Calls to the API server."""
