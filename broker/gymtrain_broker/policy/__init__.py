"""What is decided, without clock, network or cluster."""
