"""`python -m benchmarks.export_case.world`: a model folder of any size, without a training.

Made as a small one, whose users' table and vocabulary then grow: the trainer's figures,
which the gates compare with, are those of the users that were there before.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.serve_case.world import write_data, write_model  # First: it chooses a backend.

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import TrainStage, TwoTowerConfig
from recsys.data.vocabulary import Vocabulary

_USERS = 1024
_BLOCK_ROWS = 1 << 18
_TABLE = "embedding/users/embeddings"


def main(words: Sequence[str] | None = None) -> None:
    """Writes `data/`, `model/` and `export.json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export_case.world")
    add = parser.add_argument
    add("--rows", type=int, required=True, help="of the users' table")
    add("--items", type=int, default=1000)
    add("--dim", type=int, default=64, help="width of the embeddings [floats]")
    add("--seed", type=int, default=0)
    add("--out", type=Path, required=True)
    options = parser.parse_args(words)
    out: Path = options.out
    n_users = min(_USERS, options.rows - 1)
    inputs = write_data(out / "data", n_users, options.items, options.seed)
    config = TwoTowerConfig(dim=options.dim, history=8, widths=(options.dim,))
    write_model(out, TrainStage(model=config), inputs, options.seed)
    users = Vocabulary.load(out / "model" / "vocabulary" / "users.parquet")
    widened(users, options.rows).save(out / "model" / "vocabulary" / "users.parquet")
    shutil.copy(out / "model" / "vocabulary" / "users.parquet", out / "data" / "vocabulary")
    widen(out / "model", options.rows, options.seed)
    (out / "export.json").write_text(json.dumps({"name": "wide", "export": {"k": 100}}))


def widened(users: Vocabulary, rows: int) -> Vocabulary:
    """Returns a vocabulary of `rows` rows that begins as `users`."""
    number = pa.array(np.arange(len(users.own_ids) + 1, rows)).cast(pa.large_string())
    letter, nothing = (pa.scalar(text, pa.large_string()) for text in ("u", ""))
    ids = pa.concat_arrays([users.own_ids, pc.binary_join_element_wise(letter, number, nothing)])
    counts = np.ones(len(ids), np.int64)
    counts[: len(users.own_ids)] = users.row_counts[users.first_own_row :]
    return Vocabulary(ids, counts)


def widen(model: Path, rows: int, seed: int) -> None:
    """Makes the users' table of a model folder `rows` long; its first rows stay."""
    summary = json.loads((model / "model.json").read_text())
    paths = [variable["path"] for variable in summary["variables"]]
    (number,) = [n for n, path in enumerate(paths) if path.endswith(_TABLE)]
    path = model / "weights" / f"{number}.npy"
    first = np.load(path)
    rng = np.random.default_rng(seed)
    block = rng.standard_normal((_BLOCK_ROWS, first.shape[1]), np.float32)
    with path.open("wb") as file:
        shape = (rows, first.shape[1])
        described = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, described)
        file.write(first.tobytes())
        for start in range(len(first), rows, _BLOCK_ROWS):
            block[:, 0] = start
            file.write(block[: min(_BLOCK_ROWS, rows - start)].tobytes())
    summary["variables"][number]["shape"] = list(shape)
    summary["spec"]["user_rows"] = rows
    (model / "model.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main()
