"""Several processes of a run: where they start, how they meet, agree and end."""
