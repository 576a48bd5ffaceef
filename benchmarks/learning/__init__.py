"""What SmolLM2-135M learns in NeMo Gym's environments, with controls (docs/recorded/learning.md)."""
