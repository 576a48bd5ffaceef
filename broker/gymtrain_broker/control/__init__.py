"""The control loop, what it observes, and the operations that it has carried out."""
