"""A look at somebody's own files: what they hold, and the config that reads them.

dialect     how text files are written, by evidence
profile     what each column holds, streamed
names       what the name of a column says
roles       which column is the user, the item, the time …, and why
features    which columns describe items or users
findings    what a run would reject, and duplicates
config_text the config, with its reasons as comments
shown       untrusted text, fit for a terminal
"""
