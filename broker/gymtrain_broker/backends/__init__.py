"""What sandboxes are made of."""
