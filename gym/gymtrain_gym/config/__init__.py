"""The Gym config of a run: resolved, checked, cut for each server."""
