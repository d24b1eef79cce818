"""From raw columns to rows: vocabularies, the interaction store, the catalogue."""
