"""Decisions, and what they are made from. No module here knows a clock, the network or the cluster."""
