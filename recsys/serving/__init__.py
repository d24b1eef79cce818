"""Recommendations from a bundle: over HTTP, for a file of users, on the command line.

saved_model   loads a bundle's SavedModel
ranker        the best items of queries
ann_index     the approximate index: FAISS
index_build   makes and judges it at the export
batch_file    a file of users in, a file of recommendations out
users_file    reads a file of users
embed         a process that embeds queries for the evaluation
pool          the versions that are loaded
server        the HTTP server and its page
"""
