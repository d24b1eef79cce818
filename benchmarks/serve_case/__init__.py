"""A served world of any size, and the clients that ask it."""
