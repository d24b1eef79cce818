"""The training side of retrieval: examples, batches, negatives, validation, choice of a model."""
