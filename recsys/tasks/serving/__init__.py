"""Parts of serving that tasks share; a task's bundles are made by its own `serving`.

side              what the serving sides of these models share
queries           the model's inputs of queries, from raw ids and raw columns, inside the graph
events            features of events in the graph: raw columns to context and attributes
stored_users      users with their histories, and how to remove them
folders           what an export reads of a data folder, and copies of a model folder
requests          requests in raw ids, for parity and for warm-up
"""
