"""The control loop, and what it does to pods."""
