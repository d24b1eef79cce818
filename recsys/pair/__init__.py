"""Retrieval and ranking as one: a retriever finds candidates, and a ranker orders them.

lists       what a ranker reads of a retriever's list
"""
