"""What the pods of a run say over HTTP."""
