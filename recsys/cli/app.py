"""The commands and their options.

Nothing heavy is imported here: a command imports what it needs when it runs, so
`recsys --help` answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from recsys import __version__
from recsys.cli.failure import one_sentence

app = typer.Typer(
    name="recsys",
    help="Trains, evaluates, exports and serves two-tower recommenders.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]", help="Config file; by default recsys.yaml here, or the shipped one."
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Config file; by default recsys.yaml here, or the shipped one."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Overrides a key of the config; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
HiddenJsonOption = Annotated[
    bool, typer.Option("--json", hidden=True, help="JSON is printed in any case.")
]
DataOption = Annotated[Path, typer.Option("--data", help="Data folder of an InteractionEncoder.")]
ModelOption = Annotated[Path, typer.Option("--model", help="Model folder of a training.")]
MeshOption = Annotated[
    str | None,
    typer.Option("--mesh", metavar="AXES", help="The devices as a grid, as data=4,model=2."),
]
OutOption = Annotated[Path, typer.Option("--out", help="Folder to write.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    Args:
        arguments: Words after `recsys`; those of this process by default.
    """
    with one_sentence():
        app(args=None if arguments is None else list(arguments), prog_name="recsys")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        _print(__version__)
        raise typer.Exit


@app.command()
def run(config: ConfigArgument = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Run the whole pipeline: ingest, train, evaluate, export, push, report.

    Exits with 0 when the run came to its end, a refused model included; with 1
    when a step failed, with 2 when the config or the command is wrong, with 75 when
    another run holds the root.
    """
    from recsys.cli import run as command

    command.run(config, sets or [], as_json=as_json)


@app.command()
def runs(
    config: ConfigArgument = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder of the runs, instead of the config's.")
    ] = None,
    most: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the runs, the newest first: verdict, metric, data, and what was pushed."""
    from recsys.cli import runs as command

    command.runs(config, root, most, as_json=as_json)


@app.command()
def lineage(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A bundle, or a version that was pushed.")
    ],
    config: ConfigOption = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder of the run that made it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which data, code, config, vocabulary and earlier models made a bundle."""
    from recsys.cli import lineage as command

    command.lineage(bundle, config, root, as_json=as_json)


@app.command()
def clean(
    config: ConfigArgument = None,
    sets: SetOption = None,
    apply: Annotated[bool, typer.Option("--apply", help="Remove what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what of earlier runs can go by `keep` in the config; with --apply, remove it.

    What the next run, a rollback or the served model needs stays in any case.
    """
    from recsys.cli import clean as command

    raise typer.Exit(command.clean(config, sets or [], apply=apply, as_json=as_json))


@app.command()
def check(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Files of interactions, or globs.")
    ],
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="ROLE=COLUMN,…", help="Which column is what."),
    ] = None,
    items: Annotated[str | None, typer.Option("--items", help="File of the items.")] = None,
    users: Annotated[str | None, typer.Option("--users", help="File of the users.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Config to write; ./NAME.yaml by default.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Rows to read, of huge files.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at your own files, say what they hold, and write a config for them.

    Exits with 1 if something can't be decided; what would decide it is said.
    """
    from recsys.cli import check as command

    raise typer.Exit(
        command.check(files, maps or [], items, users, out, sample, force=force, as_json=as_json)
    )


@app.command()
def recommend(
    user: Annotated[str | None, typer.Option("--user", help="Id of one user; any text.")] = None,
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="File of users, instead of one."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items.")] = 10,
    config: ConfigOption = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder of the run, instead of the config's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Parquet file to write, for --users.")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option("--column", help="Column of the ids in FILE; its first one by default."),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=1 << 20, help="Users of FILE at a time.")
    ] = 8192,
    as_json: JsonOption = False,
) -> None:
    """Recommend items to a user, or to a file of users, from the latest pushed bundle."""
    from recsys.cli import recommend as command

    command.check_options(user, users, out, column)
    if users is not None and out is not None:
        command.recommend_file(users, out, column, k, batch, config, root, as_json=as_json)
    elif user is not None:
        command.recommend(user, k, config, root, as_json=as_json)


@app.command()
def rollback(
    config: ConfigOption = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder of the run, instead of the config's.")
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="VERSION", help="Serve this version again.")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the versions, and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take the newest version out of service; the one before is served again."""
    from recsys.cli import rollback as command

    command.rollback(config, root, to, list_only=list_only, as_json=as_json)


@app.command()
def serve(
    config: ConfigOption = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder of the run, instead of the config's.")
    ] = None,
    model_dir: Annotated[
        Path | None,
        typer.Option("--model-dir", help="Folder of the versions, instead of a run's."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the model; its folder's by default.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any that is free.")
    ] = 8501,
    versions: Annotated[
        int, typer.Option("--versions", min=1, max=8, help="Newest versions to hold.")
    ] = 1,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name of this machine; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the pushed model over HTTP, as TensorFlow Serving does, with a page for people.

    Prints the address once it listens. New versions are loaded and served as they come.
    """
    from recsys.cli import serve as command

    command.serve(config, root, model_dir, name, host, port, versions, hosts or [], as_json=as_json)


@app.command()
def train(
    data: DataOption,
    out: OutOption,
    config: ConfigOption = None,
    sets: SetOption = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", help="Folder of checkpoints; `checkpoints` beside --out."),
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, help="Processes on this machine.")
    ] = 1,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="MODEL", help="Model folder to go on from."),
    ] = None,
    mesh: MeshOption = None,
) -> None:
    """Train a model, without TFX; prints the result as JSON.

    Stopped or killed, it goes on from its last checkpoint when it is started again.
    """
    from recsys.cli import stages

    _print_json(stages.train(config, sets or [], data, out, checkpoints, processes, base, mesh))


@app.command()
def evaluate(
    data: DataOption,
    out: OutOption,
    measured: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="A bundle, or a model folder.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="The same, where no MODEL is given.")
    ] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="MODEL", help="The last blessed model to compare with."),
    ] = None,
    as_json: HiddenJsonOption = False,
) -> None:
    """Measure any bundle or model folder as the pipeline does, over the whole catalogue.

    Writes evaluation.json and report.html into --out. Prints the result as JSON on
    stdout, and a table for people on stderr.
    """
    from recsys.cli import evaluate as command

    _print_json(command.evaluate(measured, model, config, sets or [], data, out, against))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A bundle, or a model folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    data: DataOption,
    config: ConfigOption = None,
    sets: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write comparison.json into.")
    ] = None,
    as_json: HiddenJsonOption = False,
) -> None:
    """Measure two models on the same queries, and say which is better, and how surely.

    Prints the result as JSON on stdout, and a table for people on stderr.
    """
    from recsys.cli import compare as command

    _print_json(command.compare(a, b, config, sets or [], data, out))


@app.command()
def export(
    model: ModelOption,
    data: DataOption,
    out: OutOption,
    config: ConfigOption = None,
    sets: SetOption = None,
) -> None:
    """Export a model as a serving bundle; prints the result as JSON."""
    from recsys.cli import stages

    _print_json(stages.export(config, sets or [], model, data, out))


@app.command()
def doctor(config: ConfigArgument = None, as_json: JsonOption = False) -> None:
    """Check what this machine has, what is wrong, and how to mend it."""
    from recsys.cli import doctor as command

    raise typer.Exit(command.doctor(config, as_json=as_json))


@app.command()
def plan(
    config: ConfigArgument = None,
    devices: Annotated[
        int | None,
        typer.Option("--devices", min=1, max=4096, help="How many devices train; 1 by default."),
    ] = None,
    mesh: MeshOption = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="What each has, as 80GB.")
    ] = None,
    sets: SetOption = None,
    rows: Annotated[
        list[str] | None,
        typer.Option("--rows", metavar="NAME=N", help="Rows of a table, as users=1e8; repeatable."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Data folder of an InteractionEncoder, for the rows."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each device would hold and send in training; needs no devices.

    Exits with 1 if the training would not run so.
    """
    from recsys.cli import plan as command

    raise typer.Exit(
        command.plan(config, sets or [], devices, mesh, memory, rows or [], data, as_json=as_json)
    )


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where to write; here by default.")
    ] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Write a starting config, recsys.yaml, and MovieLens data to try it on."""
    from recsys.cli.init import init as write

    paths = write(folder)
    if as_json:
        _print(json.dumps({"files": [str(path) for path in paths]}))
        return
    _print("\n".join(f"Wrote {path}" for path in paths))
    _print("Next: recsys run" if folder == Path() else f"Next: cd {folder} && recsys run")


@app.command()
def synth(
    users: Annotated[int, typer.Option("--users", min=1, help="Users.")],
    items: Annotated[int, typer.Option("--items", min=1, help="Items of the catalogue.")],
    interactions: Annotated[int, typer.Option("--interactions", min=1, help="Interactions.")],
    out: OutOption,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same data.")] = 0,
) -> None:
    """Write data of any size with planted structure, and its config."""
    from recsys.synth import synthesize

    summary = synthesize(out, users=users, items=items, interactions=interactions, seed=seed)
    _print(json.dumps(dataclasses.asdict(summary), default=str))


@app.command()
def simulate_nights(
    out: OutOption,
    config: ConfigArgument = None,
    by: Annotated[
        str, typer.Option("--by", help="What a night stands for: day, week or month.")
    ] = "month",
    nights: Annotated[
        int | None, typer.Option("--nights", min=2, help="Nights; half of what there is.")
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", min=1, help="Newest spans a night reads; all.")
    ] = None,
    broken: Annotated[
        int, typer.Option("--broken", min=0, help="Spans that come broken, and whole later.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of which ones.")] = 0,
    arms: Annotated[
        bool, typer.Option("--arms/--no-arms", help="Also train anew each night, and never.")
    ] = True,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay dated data night by night through the pipeline: warm against cold against frozen.

    A simulation that was stopped goes on when the same command is started again.
    """
    from recsys.cli import simulate_nights as command

    options = command.Options(command.period(by), nights, window, broken, seed, arms)
    command.simulate(config, sets or [], out, options, as_json=as_json)


@app.command()
def freeze_schema(
    out: OutOption,
    config: ConfigArgument = None,
    sets: SetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Write the schemas of the last run as files, to review, commit and validate by."""
    from recsys.cli import freeze_schema as command

    for file in command.freeze_schema(config, sets or [], out, force=force):
        _print(file)


@app.command()
def schema() -> None:
    """Print the JSON schema of a config file, for editors."""
    from recsys.config import json_schema

    _print(json.dumps(json_schema(), indent=2))


def _print_json(result: dict[str, Any]) -> None:
    _print(json.dumps(result))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
