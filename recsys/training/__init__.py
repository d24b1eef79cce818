"""The training loop: its input, its checkpoints, and what is seen of it."""
