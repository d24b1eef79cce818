"""The serving side of retrieval: the SavedModel of its bundles.

side                the contents of a bundle
graph               the signatures, and the stored users and items
candidates          exact top-k inside the graph, and item embeddings in fewer bits
parity              the results in training that a bundle must reproduce, and requests
"""
