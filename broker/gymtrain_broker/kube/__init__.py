"""The API server's objects: calls, pods written and pods read."""
