"""Tasks: what is learned from events, how it is measured, and what is served."""
