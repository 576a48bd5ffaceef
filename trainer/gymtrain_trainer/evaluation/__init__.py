"""Evaluations of a run: when they are due, what they come to, and the best checkpoint."""
