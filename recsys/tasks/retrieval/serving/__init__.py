"""The serving side of retrieval: the SavedModel of its bundles.

side              what a bundle consists of
graph             the signatures, and what is stored of users and items
candidates        the best k inside the graph
stored_users      users with their histories
quantization      item embeddings in fewer bits
reference         the trainer's results that a bundle must reproduce
requests          requests to the signatures
parity            the comparison with them
embed             a process that embeds queries for the evaluation
"""
