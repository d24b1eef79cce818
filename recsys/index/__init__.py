"""The best items of a query, exactly or by an approximate index.

ranker        the best items of queries
ann_index     the approximate index: FAISS
build         makes and measures it
"""
