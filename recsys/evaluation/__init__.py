"""How good a model is: queries, exact ranks, metrics, baselines, and the verdict."""
