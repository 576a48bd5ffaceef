"""The broker: hands out sandboxes, one pod each."""
