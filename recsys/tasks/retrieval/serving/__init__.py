"""The serving side of retrieval: the SavedModel of its bundles.

side              the contents of a bundle
graph             the signatures, and the stored users and items
candidates        exact top-k inside the graph
stored_users      users with their histories
quantization      item embeddings in fewer bits
reference         the results in training that a bundle must reproduce
requests          requests to the signatures
parity            the comparison with the reference
embed             a process that embeds queries for the evaluation
"""
