"""A model folder with a table of any size, and the memory of the processes that export it."""
