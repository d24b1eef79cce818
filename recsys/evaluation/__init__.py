"""Evaluation of the models of any task: figures with intervals, comparisons, the decision."""
