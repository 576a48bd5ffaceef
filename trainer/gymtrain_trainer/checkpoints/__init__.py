"""Where a run begins, and what it leaves on its volume."""
