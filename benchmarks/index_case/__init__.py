"""Items to search, and the libraries that search them."""
