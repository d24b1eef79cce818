"""Retrieval: models that rank the items of a catalogue for a query."""
