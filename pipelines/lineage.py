"""`python -m pipelines.lineage`: what ML Metadata knows of a bundle."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as proto

from pipelines.metadata_store import DATABASE_NAME, open_store, read_known
from recsys.config.load import load_config
from recsys.runs.lineage import find_bundle, trace
from recsys.system.process import stage_main


def lineage(store: mlmd.MetadataStore, bundle: Path) -> dict[str, Any] | None:
    """Returns what is known of a bundle: `name` of the pipeline, `steps` and `models`.

    None where the store knows no such bundle.
    """
    for name in _pipelines(store):
        known = read_known(store, name)
        artifact = find_bundle(known, bundle)
        if artifact is not None:
            return {"name": name, **trace(known, artifact)}
    return None


def _pipelines(store: mlmd.MetadataStore) -> Iterator[str]:
    yield from (context.name for context in store.get_contexts_by_type("pipeline"))


def _sqlite(root: Path) -> mlmd.MetadataStore | None:
    database = root / DATABASE_NAME
    if not database.is_file():
        return None
    connection = proto.ConnectionConfig()
    connection.sqlite.filename_uri = str(database)
    connection.sqlite.connection_mode = proto.SqliteMetadataSourceConfig.READONLY
    return mlmd.MetadataStore(connection)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Looks up what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.lineage")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="folder of the run, with SQLite in it")
    parser.add_argument("--config", type=Path, help="config of the run, in place of --root")
    options = parser.parse_args(arguments)
    if options.config is not None:
        store = open_store(load_config(options.config))
    else:
        store = _sqlite(options.root)
    return {"found": None if store is None else lineage(store, options.bundle)}


if __name__ == "__main__":
    stage_main(main)
