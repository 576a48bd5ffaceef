"""Measurements that need GPUs: run by hand, each prints one line of JSON."""
