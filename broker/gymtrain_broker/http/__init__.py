"""What clients reach of the broker."""
