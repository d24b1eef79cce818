"""`python -m pipelines.freeze_schemas`: copies the schemas of the last run, to be committed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipelines.history import History
from pipelines.metadata_store import open_store
from recsys.config import Config
from recsys.config.load import load_config
from recsys.errors import RecsysError
from recsys.system.process import stage_main

_SIDES = ("interactions", "items", "users")
_STEPS = ("SchemaGen", "ImportSchemaGen")


def freeze_schemas(config: Config, out: Path, *, force: bool) -> list[Path]:
    """Writes `interactions.pbtxt`, and `items.pbtxt` and `users.pbtxt` where there are such.

    Args:
        config: The config of the run.
        out: Folder to write.
        force: Whether files that are there are overwritten.

    Returns:
        The files that were written.

    Raises:
        RecsysError: There was no run, or a file is there and `force` is not set.
    """
    schemas = last_schemas(config)
    if not schemas:
        raise RecsysError(
            "R246",
            f"The pipeline {config.name!r} must have inferred its schemas in a run under"
            f" {config.root}.",
            "Run it with `recsys run` first; later steps may fail.",
        )
    files = {out / f"{what}.pbtxt": schema for what, schema in schemas.items()}
    there = [str(file) for file in files if file.exists()]
    if there and not force:
        raise RecsysError(
            "R247",
            "A committed schema is not overwritten, as people may have edited it.",
            "Choose another folder, or take --force.",
            there[0],
        )
    out.mkdir(parents=True, exist_ok=True)
    for file, schema in files.items():
        file.write_text(committable(schema.read_text()))
    return list(files)


def committable(text: str) -> str:
    """Returns a schema whose lists may have any length: that all had the same was chance."""
    schema = text_format.Parse(text, schema_pb2.Schema())
    for feature in schema.feature:
        if feature.value_count.max > 1:
            feature.value_count.CopyFrom(schema_pb2.ValueCount(min=1))
    return text_format.MessageToString(schema)


def last_schemas(config: Config) -> dict[str, Path]:
    """Returns the schema that the last run of `config` had, of each kind of data."""
    store = open_store(config)
    if store is None:
        return {}
    history = History(store, config.name)
    files = {what: _last_schema(history, what) for what in _SIDES}
    return {what: file for what, file in files.items() if file is not None and file.is_file()}


def _last_schema(history: History, what: str) -> Path | None:
    """Returns the schema of the newest execution that inferred or read one."""
    runs = [history.last_good(f"{step}.{what.capitalize()}") for step in _STEPS]
    newest = max(filter(None, runs), key=lambda execution: execution.id, default=None)
    if newest is None:
        return None
    return next(Path(history.output(newest, "schema").uri).glob("*.pbtxt"), None)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Copies the schemas as the command line says; returns the files."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.freeze_schemas")
    parser.add_argument("--config", type=Path, required=True, help="config file (YAML)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    options = parser.parse_args(arguments)
    files = freeze_schemas(load_config(options.config), options.out, force=options.force)
    return {"files": [str(file) for file in files]}


if __name__ == "__main__":
    stage_main(main)
