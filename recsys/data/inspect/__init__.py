"""`recsys check`: inspects raw files, and writes a config that reads them.

layout       format, encoding, delimiter, header and columns of files
names        the role that a column's name suggests
profile      description of a column in a sample of rows, and units or formats of times
roles        the table of roles: which column is the user, the item, the time …, and why
shapes       what a row is: an event, a list of them, what was shown, a matrix
labels       labels: columns of yes and no, kinds of events, amounts
features     the features that columns provide
sides        files of items and users: their id columns, and features
order        the split
findings     rows that a run would reject, duplicates, and other remarkable facts
proposal     all of these steps, with hints that were tried: `inspect_files`
config_text  the config, with its reasons as comments
"""
