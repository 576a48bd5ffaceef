"""Making and checking the tasks of examples/swe."""
