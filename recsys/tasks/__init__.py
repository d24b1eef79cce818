"""Tasks: what is learned from events, how it is measured, and what is served.

task              `Task`, and the sides of the task that a model names
training_side     which examples are learned from, and what is done between epochs
judging_side      what models are measured on, and by what values
serving_side      what a bundle of a task consists of
retrieval         models that rank the items of a catalogue for a query
"""
