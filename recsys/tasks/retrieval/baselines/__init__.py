"""Baselines: recommenders that are fitted in seconds, to compare models with.

Each learns from the training events, and knows of a query's user what the model knows:
all that the user did before it. One registered class each:

    popularity          the most frequent items
    recent_popularity   the most frequent items of the last days
    item_knn            item-based nearest neighbours
    ials                matrix factorisation by implicit ALS

A class of one's own is registered with `recsys.register_baseline`.
"""
