"""Recommendations from a bundle: over HTTP, for a file of users, from Python.

retriever         one way to recommend, for all of them
saved_model       loads a bundle's SavedModel, and asks its signatures
ranker            the best items of queries
ann_index         the approximate index: FAISS
index_build       makes and judges it at the export
catalogue_search  users and items by name; filters by features
recommendations   `load_bundle`: answers in Python, which show themselves
batch_file        a file of users in, of any format; a file of recommendations out
embed             a process that embeds queries for the evaluation
server            the HTTP server and its page
"""
