"""Evaluation: queries, exact ranks, metrics, baselines, and the decision."""
