"""Training: the loop, its input, its checkpoints, and warm starts."""
