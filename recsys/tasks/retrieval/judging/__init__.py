"""The judging side of retrieval: how its models are measured.

side                the judging side: the case, its slices, and retrieval's own report
queries             held-out events as queries with histories and labels
case                ranks, lists and metrics of one system, and slices
systems             models and bundles in the item rows of the data
bundle_queries      query embeddings of a bundle
baselines           popularity, item-based nearest neighbours, implicit ALS
scores              scorers, and checks for NaN
ranking             exact ranks and lists over the whole catalogue
ranking_devices     the same in JAX, with the catalogue split over devices
example_users       recommendations for a few users, and the exposure of items
"""
