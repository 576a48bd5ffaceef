"""What runs inside the process of a NeMo Gym server."""
