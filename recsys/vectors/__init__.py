"""Item vectors for search engines outside of this project.

item_vectors      the vectors and columns of a model folder or a bundle, read in slices
vector_files      the files that engines import: Parquet, Vertex AI Vector Search, Milvus
publication       numbered publications of a folder, each against the one before
"""
