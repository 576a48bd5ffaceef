"""Checks that vLLM and the trainer compute the same."""
