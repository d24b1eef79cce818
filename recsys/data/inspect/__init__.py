"""`recsys check`: inspects raw files, and writes a config that reads them.

layout       format, encoding, delimiter, header and columns of files
profile      statistics of a column in a sample of rows, and units or formats of times
roles        the table of roles: which column is the user, the item, the time …, and why
sides        files of items and users: their id columns, and features
findings     rows that a run would reject, duplicates, and other remarkable facts
proposal     all of these steps, with hints that were tried: `inspect_files`
config_text  the config, with its reasons as comments
"""
