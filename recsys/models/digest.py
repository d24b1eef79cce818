"""Digest of everything a model folder computes with, to compare two models.

Facts of the training alone are left out: times, attempts, paths, versions.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_ARRAYS = ("weights/*.npy", "candidates.npy", "catalogue/*.npy", "user_features/*.npy")
_TABLES = ("vocabulary/*.parquet", "catalogue/*.parquet", "user_features/*.parquet")


def model_digest(folder: Path) -> str:
    """Returns the sha256 of weights, candidates, probe, ids and features of a model folder.

    It is the same wherever the values are the same, bit for bit.

    Args:
        folder: What `recsys.train` wrote.

    Raises:
        OSError: A file can't be read.
        ValueError: One is damaged.
    """
    digest = hashlib.sha256()
    summary = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    for part in ("spec", "variables"):
        digest.update(json.dumps(summary[part], sort_keys=True).encode())
    for pattern in _ARRAYS:
        for path in sorted(folder.glob(pattern)):
            _add(digest, path.relative_to(folder).as_posix(), np.load(path, allow_pickle=False))
    with np.load(folder / "probe.npz", allow_pickle=False) as probe:
        for name in sorted(probe):
            _add(digest, name, probe[name])
    for pattern in _TABLES:
        for path in sorted(folder.glob(pattern)):
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(_content(pq.read_table(path)))
    return digest.hexdigest()


def _add(digest: Any, name: str, array: np.ndarray) -> None:
    digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())


def _content(table: pa.Table) -> bytes:
    """Returns the rows of a table as Arrow writes them, in one batch whatever the file had."""
    plain = table.replace_schema_metadata(None).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    return sink.getvalue().to_pybytes()
