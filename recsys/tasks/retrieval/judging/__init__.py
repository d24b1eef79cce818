"""The judging side of retrieval: how its models are measured.

side                the judging side: the case, its slices, and retrieval's own report
queries             held-out events as queries with histories and labels
slices              parts of the queries and of the held-out events
systems             models and bundles in the item rows of the data
bundle_process      query embeddings of a bundle, from a process with TensorFlow
measurement         ranks, lists and metrics of one system
scores              scorers, and checks for NaN
ranking             exact ranks and lists over the whole catalogue
ranking_devices     the same in JAX, on one or more devices
sharded_candidates  embeddings of a catalogue, split over devices
example_users       recommendations for a few users, and the exposure of items
"""
