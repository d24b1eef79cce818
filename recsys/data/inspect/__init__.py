"""What `recsys check` does: looks at somebody's files, and writes the config that reads them.

names        what the name of a column says
dialect      how files are written: format, encoding, delimiter, header
profile      what each column holds, times in which unit or format included
roles        which column is the user, the item, the time …, and why
sides        files of items and users, and the features that their columns make
findings     what a run would reject, and duplicates
proposal     all of it together: `look`; and how the data can be split
config_text  the config, with its reasons as comments
"""
