"""A file of users answered, with the time of each part."""
