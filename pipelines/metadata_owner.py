"""One root for each name in a shared database of ML Metadata.

What our runner sweeps, and what it goes on from, it finds by the name of the pipeline; its
lock is the root's. Were two roots to run under one name, one would mark as dead what the
other one runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from pathlib import Path

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2

from recsys.errors import RecsysError

_TYPE = "recsys_root"
_ID_FILE = "root.id"


def claim_name(store: mlmd.MetadataStore, name: str, root: Path) -> None:
    """Gives `name` to `root`, for good; the holder of the run lock alone may call this.

    Args:
        store: A database that other roots may use as well.
        name: Name of the pipeline.
        root: Folder of everything that a run writes.

    Raises:
        RecsysError: The name belongs to another root.
    """
    ours = _root_id(root)
    claim = metadata_store_pb2.Context(name=name, type_id=_type(store))
    claim.custom_properties["id"].string_value = ours
    claim.custom_properties["root"].string_value = str(root)
    claim.custom_properties["host"].string_value = socket.gethostname()
    if store.get_context_by_type_and_name(_TYPE, name) is None:
        # Where somebody is faster, who it is is read below.
        with contextlib.suppress(mlmd.errors.AlreadyExistsError):
            store.put_contexts([claim])
    held = store.get_context_by_type_and_name(_TYPE, name).custom_properties
    if held["id"].string_value != ours:
        owner = f"{held['root'].string_value!r} on {held['host'].string_value}"
        raise RecsysError(
            "R616",
            f"In this database of ML Metadata the name {name!r} belongs to the root {owner}.",
            "Choose another name, run in that root, or take a database of its own.",
            str(root),
        )


def _type(store: mlmd.MetadataStore) -> int:
    return int(store.put_context_type(metadata_store_pb2.ContextType(name=_TYPE)))


def _root_id(root: Path) -> str:
    """Returns what tells this root from all others, by whatever path it is reached."""
    file = root / _ID_FILE
    if not file.exists():
        fresh = file.with_suffix(".new")
        fresh.write_text(uuid.uuid4().hex + "\n", encoding="ascii")
        os.replace(fresh, file)
    return file.read_text(encoding="ascii").strip()
