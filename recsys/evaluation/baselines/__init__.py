"""What a model is compared with: recommenders that are fitted in seconds.

Each learns from the training events, and knows of a query's user what the model knows:
all that the user did before it. One registered class each:

    popularity          what was taken most
    recent_popularity   what was taken most lately
    item_knn            what was taken by those who took the same
    ials                matrix factorisation by implicit ALS

A class of one's own is registered with `recsys.register_baseline`.
"""
