"""The development cluster in parts that travel to a GPU machine without a network."""
