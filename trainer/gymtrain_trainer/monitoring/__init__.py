"""What is reported during training: progress, records of steps, alarms, metrics."""
