"""Keeping house: what of earlier runs can go, what has to stay, and room on the disk."""
