"""The Gym config of a run: resolved, checked, and split by server."""
