"""Glue to TRL's AsyncGRPOTrainer, which stays unmodified."""
