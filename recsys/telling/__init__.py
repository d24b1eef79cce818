"""Telling people what came of a night: its summary, and a webhook."""
