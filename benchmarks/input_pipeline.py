"""Examples/s that reach the train step, shuffled, from a memory-mapped store.

    python -m benchmarks.input_pipeline --rows 100000000

It makes a store of random events in a temporary folder, which isn't timed, then reads
batches as training does. Cases:

    ids        users and items alone
    history    with the user's newest items before the event
    model      with all that the model of the config reads: history, dropout of ids,
               uniform negatives, and a feature of each side
    feed       `model`, put on the devices by the feed
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from typer import Option

from benchmarks.measure import call, print_line, run
from benchmarks.stores import write_shard
from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.store import EVENTS_OF_A_SHARD, InteractionStore, write_manifest
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.training_side import training_events
from recsys.training.prefetch import read_ahead

Case = StrEnum("Case", ["ids", "history", "model", "feed"])
_CASES = [*Case]
_EVENTS_OF_A_USER = 100
_N_ITEMS = 100_000
_TOKENS = 8
_RUNS = 5
_EXAMPLES_OF_A_RUN = 8_000_000


def main(
    rows: Annotated[int, Option(help="Events of the store.")] = 1_000_000,
    history: Annotated[int, Option(help="Items of a history.")] = 50,
    batch: Annotated[int, Option(help="Examples of a batch.")] = 4096,
    case: Annotated[list[Case], Option(help="Measure these alone.")] = _CASES,
) -> None:
    """Measures each case in a process of its own, and prints its line."""
    with tempfile.TemporaryDirectory(prefix="recsys-input-") as folder:
        make_store(Path(folder) / "store", rows)
        for name in case:
            label = f"{rows} rows, {name}" + ("" if name == "ids" else f" {history}")
            sizes = {"folder": folder, "rows": rows, "history": history, "batch": batch}
            watched = call(speeds, {"KERAS_BACKEND": "jax"}, True, case=name, **sizes)
            peak = watched.peak_rss_mib
            print_line("input_pipeline", label, watched.result, "examples/s", peak)


def make_store(folder: Path, n_rows: int) -> None:
    """Writes a store of `n_rows` events, a shard at a time."""
    shards = max(1, -(-n_rows // EVENTS_OF_A_SHARD))
    infos, first_user = [], 0
    for index in range(shards):
        size = (index + 1) * n_rows // shards - index * n_rows // shards
        n_users = max(1, size // _EVENTS_OF_A_USER)
        events = _events(np.random.default_rng(index), size, first_user, n_users)
        infos.append(write_shard(folder, "train", index, events))
        first_user += n_users
    write_manifest(folder, 0, {"train": infos, "eval": []})


def _events(rng: np.random.Generator, n: int, first_user: int, n_users: int) -> pa.Table:
    user = rng.integers(0, n_users, n)
    ids = pa.array([f"u{first_user + number}" for number in range(n_users)])
    # Few items are taken often, as everywhere: density falls with the row.
    item = 1 + (_N_ITEMS * rng.random(n) ** 3).astype(np.int32)
    time = rng.integers(1_400_000_000, 1_700_000_000, n)
    columns = [ids.take(pa.array(user)), (1 + first_user + user).astype(np.int32), item, time]
    return pa.table(columns, names=["user_id", "user_row", "item_row", "timestamp"])


def speeds(folder: str, case: str, rows: int, history: int, batch: int) -> list[float]:
    """Returns the examples/s of each run of one case."""
    store = InteractionStore.open(Path(folder) / "store")
    source = make_source(store, case, rows, history, batch)
    n_batches = max(1, min(_EXAMPLES_OF_A_RUN // batch, source.steps_per_epoch - 1))
    batches, rates = iter(_reader(source, case)), []
    next(batches)
    for _ in range(_RUNS):
        started = time.perf_counter()
        for _ in range(n_batches):
            next(batches)
        rates.append(n_batches * batch / (time.perf_counter() - started))
    return rates


def _reader(source: BatchSource, case: str) -> Iterable[Any]:
    if case != "feed":
        return read_ahead(source)
    # Only this case starts JAX and Keras.
    from recsys.embedding import TableConfig, activate, table_layout
    from recsys.training.prefetch import BatchIterator

    activate(table_layout([TableConfig("items", 1 + _N_ITEMS, 64)]))
    return BatchIterator(source)


def make_source(
    store: InteractionStore, case: str, rows: int, history: int, batch: int
) -> BatchSource:
    """Returns the batches of a case over a store that `make_store` wrote."""
    is_model = case in ("model", "feed")
    dropout, negatives = (0.1, 256) if is_model else (0.0, 0)
    model = TwoTowerConfig(history=history, id_dropout=dropout, new_user_share=dropout)
    if case == "ids":  # No model has none.
        model = model.model_copy(update={"history": 0})
    train = TrainConfig(batch_size=batch, epochs=2 + _RUNS, uniform_negatives=negatives)
    features = (_bags("genres", 1 + _N_ITEMS),) if is_model else ()
    of_users = (_bags("segment", 2 + rows // _EVENTS_OF_A_USER),) if is_model else ()
    names = ["", *(str(row) for row in range(_N_ITEMS))]
    catalogue = Catalogue(names, names, features)
    return BatchSource(
        training_events(store.train, train, store.split), catalogue, model, train, of_users
    )


def _bags(name: str, n_rows: int) -> FeatureBags:
    bags = np.random.default_rng(0).integers(0, 1000, (n_rows, _TOKENS), np.int32)
    return FeatureBags(name, 1000, bags)


if __name__ == "__main__":
    run(main)
