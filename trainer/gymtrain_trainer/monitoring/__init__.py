"""What is known of training while it goes on: progress, records of steps, alarms, metrics."""
