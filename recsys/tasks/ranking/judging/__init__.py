"""The judging side of ranking."""
