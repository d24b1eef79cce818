"""How retrieval models are measured: queries, candidates, exact ranks."""
