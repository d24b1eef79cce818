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
from typing import Annotated, Any, Literal

from typer import Argument, Exit, Option, Typer

from recsys import __version__
from recsys.cli.failure import one_sentence

app = Typer(
    name="recsys",
    help="Train, evaluate, export and serve recommenders.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CONFIG_HELP = "Config file. Default: ./recsys.yaml, else the config that ships with recsys."
ConfigArgument = Annotated[Path | None, Argument(metavar="CONFIG", help=_CONFIG_HELP)]
ConfigOption = Annotated[Path | None, Option("--config", help=_CONFIG_HELP)]
Sets = Annotated[
    list[str] | None,
    Option("--set", metavar="A.B=VALUE", help="Override a key of the config; repeatable."),
]
Root = Annotated[Path | None, Option(help="Folder of the runs. Default: the config's `root`.")]
Json = Annotated[bool, Option("--json", help="Print JSON on stdout, for programs.")]
AlwaysJson = Annotated[bool, Option("--json", hidden=True, help="JSON is printed in any case.")]
Data = Annotated[Path, Option(help="Data folder, as ingestion writes it.")]
Mesh = Annotated[
    str | None,
    Option(metavar="AXES", help="Arrange the devices as a grid, such as data=4,model=2."),
]
Out = Annotated[Path, Option(help="Folder to write.")]
Processes = Annotated[int, Option(min=1, max=256, help="Processes on this machine.")]
Coordinator = Annotated[
    str | None,
    Option(metavar="HOST:PORT", help="First process of several hosts, or auto: a scheduler says."),
]
NumProcesses = Annotated[int | None, Option(min=1, help="How many processes there are.")]
ProcessId = Annotated[int | None, Option(min=0, help="Which one this is, from 0.")]
Wait = Annotated[
    float | None, Option(min=0, help="Seconds that hosts wait for each other. Default: 300.")
]
Force = Annotated[bool, Option("--force", help="Overwrite existing files.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    Args:
        arguments: Words after `recsys`; those of this process by default.
    """
    with one_sentence():
        app(args=None if arguments is None else list(arguments), prog_name="recsys")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        _print(__version__)
        raise Exit


@app.command()
def run(config: ConfigArgument = None, sets: Sets = None, as_json: Json = False) -> None:
    """Run the whole pipeline: ingest, train, evaluate, export, push, report.

    Exit codes: 0 the run finished, also if the model was refused; 1 a step failed;
    2 the config or the command is wrong; 75 another run uses the same root.
    """
    from recsys.cli import run as command

    command.run(config, sets or [], as_json=as_json)


@app.command()
def runs(
    config: ConfigArgument = None,
    root: Root = None,
    most: Annotated[int, Option("-n", min=1, help="Number of runs to list.")] = 20,
    as_json: Json = False,
) -> None:
    """List past runs, newest first: result, metric, data, and what was pushed."""
    from recsys.cli import past_runs

    past_runs.runs(config, root, most, as_json=as_json)


@app.command()
def lineage(
    bundle: Annotated[Path, Argument(metavar="BUNDLE", help="A bundle, or a pushed version.")],
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show which data, code, config, vocabulary and earlier models made a bundle."""
    from recsys.cli import past_runs

    past_runs.lineage(bundle, config, root, as_json=as_json)


@app.command()
def clean(
    config: ConfigArgument = None,
    sets: Sets = None,
    apply: Annotated[bool, Option("--apply", help="Remove the files, not only list them.")] = False,
    as_json: Json = False,
) -> None:
    """List which files of past runs the config's `keep` lets go; remove them with --apply.

    What the next run, a rollback or the served model needs always stays.
    """
    from recsys.cli import past_runs

    raise Exit(past_runs.clean(config, sets or [], apply=apply, as_json=as_json))


@app.command()
def check(
    files: Annotated[list[str], Argument(metavar="FILE…", help="Files of interactions, or globs.")],
    maps: Annotated[
        list[str] | None,
        Option("--map", metavar="ROLE=COLUMN,…", help="What a column holds, such as user=uid."),
    ] = None,
    items: Annotated[str | None, Option(help="File of the items.")] = None,
    users: Annotated[str | None, Option(help="File of the users.")] = None,
    out: Annotated[Path | None, Option(help="Config to write. Default: ./NAME.yaml.")] = None,
    sample: Annotated[int | None, Option(min=1, help="Rows to read of large files.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Inspect your own data files, report what they hold, and write a config for them.

    Exits with 1 if something can't be decided, and says what would decide it.
    """
    from recsys.cli import check as command

    raise Exit(
        command.check(files, maps or [], items, users, out, sample, force=force, as_json=as_json)
    )


@app.command()
def recommend(
    user: Annotated[str | None, Option(help="Id of one user; any text.")] = None,
    users: Annotated[Path | None, Option(metavar="FILE", help="File of users, for many.")] = None,
    k: Annotated[int, Option("-k", min=1, help="Number of items for each user.")] = 10,
    config: ConfigOption = None,
    root: Root = None,
    out: Annotated[Path | None, Option(help="Parquet file to write, with --users.")] = None,
    column: Annotated[
        str | None, Option(help="Column of FILE that holds the ids. Default: the first.")
    ] = None,
    batch: Annotated[int, Option(min=1, max=1 << 20, help="Users of FILE at a time.")] = 8192,
    as_json: Json = False,
) -> None:
    """Recommend items to one user, or to a file of users, with the newest pushed bundle."""
    from recsys.cli import recommend as command

    command.check_options(user, users, out, column)
    if users is not None and out is not None:
        command.recommend_file(users, out, column, k, batch, config, root, as_json=as_json)
    elif user is not None:
        command.recommend(user, k, config, root, as_json=as_json)


@app.command()
def rollback(
    config: ConfigOption = None,
    root: Root = None,
    to: Annotated[int | None, Option(metavar="VERSION", help="Serve this version again.")] = None,
    list_only: Annotated[bool, Option("--list", help="List the versions, change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Take the newest version out of service, so that the one before is served again."""
    from recsys.cli import rollback as command

    command.rollback(config, root, to, list_only=list_only, as_json=as_json)


@app.command()
def serve(
    config: ConfigOption = None,
    root: Root = None,
    model_dir: Annotated[
        Path | None, Option(help="Folder that holds the versions. Default: that of the run.")
    ] = None,
    name: Annotated[str | None, Option(help="Model name. Default: its folder's name.")] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 8501,
    versions: Annotated[int, Option(min=1, max=8, help="Newest versions to keep loaded.")] = 1,
    hosts: Annotated[
        list[str] | None,
        Option("--allow-host", metavar="NAME", help="A host name of this machine; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the pushed model over HTTP, like TensorFlow Serving, and a page for people.

    Prints the address once it listens. New versions are loaded as they are pushed.
    """
    from recsys.cli import serve as command

    command.serve(config, root, model_dir, name, host, port, versions, hosts or [], as_json=as_json)


@app.command()
def train(
    data: Data,
    out: Out,
    config: ConfigOption = None,
    sets: Sets = None,
    checkpoints: Annotated[
        Path | None, Option(help="Folder of the checkpoints. Default: `checkpoints` beside --out.")
    ] = None,
    processes: Processes = 1,
    base: Annotated[
        Path | None, Option(metavar="MODEL", help="Model folder to start from.")
    ] = None,
    mesh: Mesh = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    hosts: Annotated[
        Path | None,
        Option(metavar="FILE", help="File of hosts, HOST:PORT a line; lost ones are waited for."),
    ] = None,
    host: Annotated[int | None, Option(min=0, help="Which line of it this is, from 0.")] = None,
    wait: Wait = None,
) -> None:
    """Train a model without the pipeline; prints the result as JSON.

    A training that was stopped or killed resumes from its last checkpoint.
    """
    from recsys.cli import stages

    placed = {
        "--processes": processes,
        "--coordinator": coordinator,
        "--num-processes": num_processes,
        "--process-id": process_id,
        "--hosts": None if hosts is None else hosts.resolve(),
        "--host": host,
        "--wait": wait,
    }
    _print_json(stages.train(config, sets or [], data, out, checkpoints, base, mesh, placed))


@app.command()
def tune(
    data: Data,
    config: ConfigArgument = None,
    minutes: Annotated[
        float, Option(min=0.01, help="What all trials may take, those of earlier calls too.")
    ] = 60.0,
    vary: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=RANGE",
            help="Vary a key: log:0.001..0.1, 16..256, 64..512/64 or mean|attention; repeatable.",
        ),
    ] = None,
    space: Annotated[
        Path | None, Option(metavar="FILE", help="YAML that maps keys to ranges.")
    ] = None,
    study: Annotated[str, Option(metavar="NAME", help="Name of the study.")] = "study",
    trials: Annotated[int | None, Option(min=1, help="Number of trials, at the most.")] = None,
    pruner: Annotated[
        Literal["median", "hyperband", "none"], Option(help="What ends poor trials early.")
    ] = "median",
    seed: Annotated[int, Option(min=0, help="Random seed of the trials' settings.")] = 0,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Try settings of model and training within a time budget, and write the best config.

    Trials are compared on validation alone; the held-out part of the data is never read.
    A study that was stopped or killed goes on when the same command is started again.
    Without --vary and --space the usual settings of the two towers are varied.
    """
    from recsys.cli import tune as command

    command.tune(
        config,
        sets or [],
        data,
        study,
        minutes,
        vary or [],
        space,
        trials,
        pruner,
        seed,
        as_json=as_json,
    )


@app.command()
def evaluate(
    data: Data,
    out: Out,
    measured: Annotated[
        Path | None, Argument(metavar="MODEL", help="A bundle, or a model folder.")
    ] = None,
    model: Annotated[Path | None, Option(help="The same as MODEL, as an option.")] = None,
    config: ConfigOption = None,
    sets: Sets = None,
    against: Annotated[
        Path | None, Option(metavar="MODEL", help="The last blessed model, to compare with.")
    ] = None,
    processes: Processes = 1,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    wait: Wait = None,
    as_json: AlwaysJson = False,
) -> None:
    """Measure a bundle or a model folder over the whole catalogue, as the pipeline does.

    Writes evaluation.json and report.html into --out. Prints the result as JSON on
    stdout, and a table for people on stderr. Of several processes, each of which has
    a part of the tables and of the catalogue, the first one does.
    """
    from recsys.cli import evaluate as command

    placed = {
        "--processes": None if processes == 1 else processes,
        "--coordinator": coordinator,
        "--num-processes": num_processes,
        "--process-id": process_id,
        "--wait": wait,
    }
    _print_json(command.evaluate(measured, model, config, sets or [], data, out, against, placed))


@app.command()
def compare(
    a: Annotated[Path, Argument(metavar="A", help="A bundle, or a model folder.")],
    b: Annotated[Path, Argument(metavar="B", help="Another one.")],
    data: Data,
    config: ConfigOption = None,
    sets: Sets = None,
    out: Annotated[Path | None, Option(help="Folder to write comparison.json into.")] = None,
    as_json: AlwaysJson = False,
) -> None:
    """Measure two models on the same queries; say which is better, and how certain that is.

    Prints the result as JSON on stdout, and a table for people on stderr.
    """
    from recsys.cli import compare as command

    _print_json(command.compare(a, b, config, sets or [], data, out))


@app.command()
def export(
    model: Annotated[Path, Option(help="Model folder, as training writes it.")],
    data: Data,
    out: Out,
    config: ConfigOption = None,
    sets: Sets = None,
) -> None:
    """Export a model as a serving bundle; prints the result as JSON."""
    from recsys.cli import stages

    _print_json(stages.export(config, sets or [], model, data, out))


@app.command()
def publish_vectors(
    out: Annotated[Path, Option(help="Folder of the publications, a number each.")],
    model: Annotated[
        Path | None,
        Argument(
            metavar="MODEL",
            help="Model folder, bundle, or root of a run. Default: the newest pushed bundle.",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        Option("--format", help="parquet (the default), vertex, milvus; repeatable."),
    ] = None,
    columns: Annotated[
        str | None,
        Option(
            metavar="NAME[:TYPE],…",
            help="Columns beside the vectors; types: text, list, whole, number. Default: all.",
        ),
    ] = None,
    shard_rows: Annotated[int, Option(min=1, help="Items of a file, at the most.")] = 500_000,
    changed_only: Annotated[
        bool, Option("--changed-only", help="Leave out what is as in the last publication.")
    ] = False,
    keep: Annotated[int, Option(min=1, help="Newest publications that stay.")] = 2,
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write the item vectors for a search engine: Parquet, Vertex AI Vector Search, Milvus.

    Says which items are gone since the last publication in the same folder.
    """
    from recsys.cli import vectors_command as command

    chosen = None if columns is None else [name for name in columns.split(",") if name]
    command.publish(
        model,
        out,
        formats or ["parquet"],
        chosen,
        shard_rows,
        keep,
        config,
        root,
        changed_only=changed_only,
        as_json=as_json,
    )


@app.command()
def doctor(config: ConfigArgument = None, as_json: Json = False) -> None:
    """Check whether this machine can run recsys, and say how to fix what is wrong."""
    from recsys.cli import doctor as command

    raise Exit(command.doctor(config, as_json=as_json))


@app.command()
def plan(
    config: ConfigArgument = None,
    devices: Annotated[
        int | None, Option(min=1, max=256, help="Number of devices. Default: the mesh's, or 1.")
    ] = None,
    mesh: Mesh = None,
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="Memory of each device, such as 80GB.")
    ] = None,
    sets: Sets = None,
    rows: Annotated[
        list[str] | None,
        Option(metavar="NAME=N", help="Rows of a table, such as users=1e8; repeatable."),
    ] = None,
    data: Annotated[Path | None, Option(help="Data folder to take the table sizes from.")] = None,
    hosts: Annotated[
        int | None, Option(min=1, help="Number of hosts; says what each holds and sends.")
    ] = None,
    devices_per_host: Annotated[int | None, Option(min=1, help="Devices of each host.")] = None,
    link: Annotated[
        str | None,
        Option(metavar="SIZE", help="Bytes/s of a device within its host. Default: 450GB."),
    ] = None,
    fabric: Annotated[
        str | None,
        Option(metavar="SIZE", help="Bytes/s of a device to other hosts. Default: 50GB."),
    ] = None,
    disk: Annotated[
        str | None, Option(metavar="SIZE", help="Bytes/s that a host writes. Default: 2GB.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what each device would hold and send in training; needs no devices.

    Exits with 1 if the training could not run like that.
    """
    from recsys.cli import plan_command as command

    raise Exit(
        command.plan(
            config,
            sets or [],
            devices,
            mesh,
            memory,
            rows or [],
            data,
            hosts,
            devices_per_host,
            {"link": link, "fabric": fabric, "disk": disk},
            as_json=as_json,
        )
    )


@app.command()
def init(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="Folder to write. Default: this one.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Write a starting config, recsys.yaml, and MovieLens data to try it on."""
    from recsys.cli.init import init as write

    paths = write(folder)
    if as_json:
        _print_json({"files": [str(path) for path in paths]})
        return
    _print("\n".join(f"Wrote {path}" for path in paths))
    _print("Next: recsys run" if folder == Path() else f"Next: cd {folder} && recsys run")


@app.command()
def synth(
    users: Annotated[int, Option(min=1, help="Number of users.")],
    items: Annotated[int, Option(min=1, help="Number of items.")],
    interactions: Annotated[int, Option(min=1, help="Number of interactions.")],
    out: Out,
    seed: Annotated[int, Option(min=0, help="Random seed; the same seed gives the same data.")] = 0,
) -> None:
    """Write synthetic data of any size, with structure to learn, and a config for them."""
    from recsys.synth import synthesize

    summary = synthesize(out, users=users, items=items, interactions=interactions, seed=seed)
    _print(json.dumps(dataclasses.asdict(summary), default=str))


@app.command()
def simulate_nights(
    out: Out,
    config: ConfigArgument = None,
    by: Annotated[
        Literal["day", "week", "month"], Option(help="Length of a night's data.")
    ] = "month",
    nights: Annotated[
        int | None, Option(min=2, help="Number of nights. Default: half of the periods.")
    ] = None,
    window: Annotated[
        int | None, Option(min=1, help="Newest spans that a night reads. Default: all.")
    ] = None,
    broken: Annotated[
        int, Option(min=0, help="Number of spans that arrive broken, and whole a night later.")
    ] = 0,
    seed: Annotated[int, Option(min=0, help="Random seed of which spans are broken.")] = 0,
    arms: Annotated[
        bool, Option("--arms/--no-arms", help="Also measure cold and never updated models.")
    ] = True,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Backtest: replay past data night by night, and compare warm, cold and frozen models.

    A simulation that was stopped continues when the same command is started again.
    """
    from recsys.cli import simulate_nights as command

    options = command.Options(by, nights, window, broken, seed, arms)
    command.simulate(config, sets or [], out, options, as_json=as_json)


@app.command()
def freeze_schema(
    out: Out, config: ConfigArgument = None, sets: Sets = None, force: Force = False
) -> None:
    """Write the data schemas of the last run as files, to review, commit and validate by."""
    from recsys.cli import stages
    from recsys.config.load import load_config

    words = ["--out", str(out.resolve()), *(["--force"] if force else [])]
    settings = load_config(config, sets or [])
    _print("\n".join(stages.call_pipeline("freeze-schema", words, settings)["files"]))


@app.command()
def schema() -> None:
    """Print the JSON schema of a config file, for editors."""
    from recsys.config import Config

    _print(json.dumps(Config.model_json_schema(), indent=2))


def _print_json(result: dict[str, Any]) -> None:
    _print(json.dumps(result))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
