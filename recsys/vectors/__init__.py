"""Item vectors for search engines outside of this project.

item_vectors      the vectors and columns of a model folder or a bundle, read in slices
publication       numbered publications in a folder, with the deletions since the previous one
"""
