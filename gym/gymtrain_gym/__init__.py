"""What the Gym image adds to NeMo Gym: one server per pod, the preflight of a run, and its datasets."""
