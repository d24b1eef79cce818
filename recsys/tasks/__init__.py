"""Tasks: what is learned from events, how it is measured, and what is served.

serving_side      what a bundle of a task consists of
retrieval         models that rank the items of a catalogue for a query
"""
