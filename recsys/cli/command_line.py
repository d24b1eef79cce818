"""All commands, in the order of `recsys --help`.

Each command is a function. Heavy packages are imported only when a command runs, so that
`recsys --help`, which imports all these modules, is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from typer import Exit, Option, Typer

from recsys.cli.check import check
from recsys.cli.doctor import doctor
from recsys.cli.evaluate import compare, evaluate
from recsys.cli.failure import one_sentence
from recsys.cli.files import freeze_schema, init, schema, synth
from recsys.cli.forget import forget
from recsys.cli.past_runs import clean, lineage, runs
from recsys.cli.plan import plan
from recsys.cli.publish_vectors import publish_vectors
from recsys.cli.recommend import recommend
from recsys.cli.run import run
from recsys.cli.serving import rollback, serve
from recsys.cli.signature import command_of
from recsys.cli.simulate_nights import simulate_nights
from recsys.cli.stages import export, train
from recsys.cli.tune import tune
from recsys.config.removed import check_command_line
from recsys.system import lean_imports
from recsys.system.installation import VERSION

app = Typer(
    name="recsys",
    help="Train, evaluate, export and serve recommenders.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    *(run, runs, lineage, clean, forget, check, recommend, rollback, serve, train, tune, evaluate),
    *(compare, export, publish_vectors, doctor, plan, init, synth, simulate_nights),
    *(freeze_schema, schema),
):
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
