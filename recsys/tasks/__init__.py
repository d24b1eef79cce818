"""Tasks: what is learned from events, how it is measured, and what is served.

task              a kind of task, and how its sides are found
training_side     what a training asks its task
serving_side      what a bundle of a task consists of
retrieval         models that rank the items of a catalogue for a query
"""
