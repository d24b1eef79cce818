"""Command-line interface: results on stdout, messages on stderr, exit codes 0, 1 and 2.

command_line  all commands; each is a function, most in the module of its name
options       options of several commands
files         `init`, `synth`, `freeze-schema` and `schema`
forget        `forget`
past_runs     `runs`, `lineage` and `clean`
stages        `train` and `export`, and subprocesses of stages
evaluate      `evaluate` and `compare`
serving       `serve` and `rollback`
simulation    the backtest of `simulate-nights`
follow        runs the pipeline in a subprocess and displays its events
failure       error output
terminal      console, progress bars and tables
"""

from recsys.cli.command_line import main

__all__ = ["main"]
