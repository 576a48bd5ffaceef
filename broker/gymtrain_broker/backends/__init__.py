"""What sandboxes are made of: pods, or objects of agent-sandbox."""
