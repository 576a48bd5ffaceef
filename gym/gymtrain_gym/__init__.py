"""The Gym image's additions to NeMo Gym: one server per pod, a run's preflight, and its datasets."""
