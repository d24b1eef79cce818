"""Search for the best items of a query, exactly or by an approximate index: `search`."""
