"""The command line: stdout is data, stderr is for people, exit codes are 0, 1 and 2.

command_line  the commands and their options; each imports its own module when it runs
stages        train and export, and how any stage is started as a process
follow        runs the pipeline as a process and shows its events
failure       how an error looks
terminal      the console and the tables

Every other module is the command of its name.
"""

from recsys.cli.command_line import main

__all__ = ["main"]
