"""Retrieval and ranking as one: a retriever finds candidates, and a ranker orders them.

config      the key `ranker` of a config, and the stage that trains a pair
score       the score by which candidates are ordered, a formula over labels
lists       what a ranker reads of a retriever's list
folder      the folder of a pair: a retriever's model folder, with the ranker's in `ranker/`
serving     the contents of a pair's bundle
parity      the results in training that a bundle must reproduce
"""
