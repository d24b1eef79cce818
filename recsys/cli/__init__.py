"""Command-line interface: results on stdout, messages on stderr, exit codes 0, 1 and 2.

command_line  all commands; each is a function, most in the module of its name
options       options of several commands
signature     options from the signature and the docstring of a function
show          results as tables or JSON
files         `init`, `synth`, `freeze-schema` and `schema`
forget        `forget`
past_runs     `runs`, `lineage` and `clean`
stages        `train` and `export`, and subprocesses of stages
evaluate      `evaluate` and `compare`
serving       `serve` and `rollback`
follow        runs the pipeline in a subprocess and displays its events
failure       error output
terminal      console and progress bars
"""

from recsys.cli.command_line import main

__all__ = ["main"]
