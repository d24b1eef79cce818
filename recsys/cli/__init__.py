"""Command-line interface: results on stdout, messages on stderr, exit codes 0, 1 and 2.

Each command is a function. Heavy packages are imported only when a command runs, so that
`recsys --help`, which imports all these modules, is fast.

run        `run` and `simulate-nights`
stages     `train`, `evaluate`, `compare` and `export`
tune       `tune`
plan       `plan`
serving    `serve`, `rollback`, `recommend`, `rank` and `publish-vectors`
past_runs  `runs` and `lineage`
removal    `clean` and `forget`
check      `check` and `doctor`
files      `init`, `synth`, `freeze-schema` and `schema`
options    options of several commands, and of a function's signature
processes  subprocesses of stages and of the pipeline, and their events
show       results as tables or JSON
terminal   console, progress bars and errors
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from typer import Exit, Option, Typer

from recsys.cli import check, files, past_runs, plan, removal, run, serving, stages, tune
from recsys.cli.options import command_of
from recsys.cli.terminal import one_sentence
from recsys.stages import check_command_line
from recsys.system import lean_imports
from recsys.system.installation import VERSION

__all__ = ["app", "main"]

app = Typer(
    name="recsys",
    help="Train, evaluate, export and serve recommenders.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    run.run, past_runs.runs, past_runs.lineage, removal.clean, removal.forget, check.check,
    serving.recommend, serving.rank, serving.rollback, serving.serve, stages.train, tune.tune,
    stages.evaluate, stages.compare, stages.export, serving.publish_vectors, check.doctor,
    plan.plan, files.init, files.synth, run.simulate_nights, files.freeze_schema, files.schema,
):  # fmt: skip
    app.command()(command_of(_command))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    Args:
        arguments: Arguments after `recsys`. Default: `sys.argv`.
    """
    if arguments is None:  # The process is ours.
        lean_imports.install()
    with one_sentence():
        check_command_line(sys.argv[1:] if arguments is None else arguments)
        app(args=None if arguments is None else list(arguments), prog_name="recsys")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(VERSION)
        raise Exit
