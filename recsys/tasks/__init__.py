"""Tasks: learning from events, judging models, and serving them.

task              `Task`, and the sides of the task that a model names
training_side     the training examples, and the work between epochs
judging_side      the case on which models are measured, and their values
serving_side      the contents of a bundle
retrieval         models that rank the items of a catalogue for a query
"""
