"""A look at somebody's own files: what they hold, and the config that reads them.

dialect     how files are written: format, encoding
tables      how tables of text are written, by evidence over their first lines
profile     what each column holds, streamed
times       in which unit, or in which format of text, values are times
separators  what stands between the parts of texts that are lists
lists       whether a row holds a list of events
names       what the name of a column says
overlaps    which columns hold the same ids as a catalogue
roles       which column is the user, the item, the time …, and why
splits      how the data can be split, and what orders it
sides       files of items and users
features    which columns describe items or users
findings    what a run would reject, and duplicates
report      all of it together
config_text the config, with its reasons as comments
shown       untrusted text, fit for a terminal
"""
