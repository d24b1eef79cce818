"""The command line: stdout is data, stderr is for people, exit codes are 0, 1 and 2.

commands  the commands and their options; each imports its own module when it runs
stages    train and export, and how any stage is started as a process
pipeline  which module runs a command of the pipeline, by entry points
follow    runs the pipeline as a process and shows its events
failure   how an error looks
terminal  the console and the tables

Every other module is the command of its name.
"""

from recsys.cli.commands import main

__all__ = ["main"]
