"""The command line: stdout is data, stderr is talk, exit codes are 0, 1 and 2.

app         the commands and their options; what a command needs it imports itself
failure     how an error looks
run         `recsys run`: starts the pipeline, follows it, ends it
run_view    the events of a run as lines and a bar
run_result  the tables that `recsys run` ends with
stages      the stages as processes: `recsys train`, `evaluate`, `export`
evaluate    `recsys evaluate`; evaluate_view is its table
compare     `recsys compare`: two models on the same queries
"""

from recsys.cli.app import main

__all__ = ["main"]
