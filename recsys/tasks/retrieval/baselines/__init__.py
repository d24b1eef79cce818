"""Baselines: recommenders that are fitted in seconds, to compare models with.

Each learns from the training events and gets the same history of a query's user as the model.
They are registered classes:

    popularity          the most frequent items
    recent_popularity   the most frequent items of the last days
    item_knn            item-based nearest neighbours
    ials                matrix factorisation with implicit ALS

`recsys.register_baseline` registers further classes.
"""
