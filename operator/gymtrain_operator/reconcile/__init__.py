"""What to do about a run, given what was seen of it. Pure: time is an argument, the cluster is data."""
