"""Pods of sandboxes as objects of the API server: written and read, without a clock or network."""
