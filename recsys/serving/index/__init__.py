"""The best items of a query, ranked outside of TensorFlow.

build    the index of a bundle, made and judged at the export
effort   how hard it searches: the least that finds enough
queries  what it is judged by
ann      the approximate index: FAISS behind a few words
stored   the files of an index in a bundle
exact    every item looked at, by the C kernels or by NumPy
ranker   the two together: best items of queries, with items left out

Nothing here imports TensorFlow.
"""
