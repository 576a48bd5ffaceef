"""Benchmarks that need GPUs: run by hand, each with its command in its docstring."""
