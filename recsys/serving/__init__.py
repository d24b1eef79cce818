"""Recommendations from a bundle: over HTTP, for a file of users, from Python.

retriever one way to recommend, for all of them catalogue_search users and items by name; filters by
features recommendations `load_bundle`: answers in Python, with tables for notebooks batch_file a
file of users in, of any format; a file of recommendations out server the HTTP server and its page
"""
