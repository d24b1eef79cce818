"""`recsys check`: inspects raw files, and writes a config that reads them.

names        roles suggested by column names
dialect      format, encoding, delimiter and header of files
profile      statistics of each column, and units or formats of times
roles        which column is the user, the item, the time …, and why
sides        files of items and users: their id columns, and features
findings     rows that a run would reject, and duplicates
split_proposal  possible splits of the data
remarks      sentences on remarkable facts
proposal     all of these steps, with hints that were tried: `inspect_files`
config_text  the config, with its reasons as comments
"""
