"""Examples/s that reach the train step, shuffled, from a memory-mapped store.

    python -m benchmarks.input_pipeline --rows 100000000

It makes a store of random events in a temporary folder, which isn't timed, then reads
batches as training does. Cases:

    ids        users and items alone
    history    with the user's newest items before the event
    known      with the user's newest items of all, which are no negatives
    others     with a history of all other items of the user
    model      with all that the model of the config reads: history, dropout of ids,
               uniform negatives, and a feature of each side
    popular    `model`, with as many negatives as examples, by the power 0.75 of their
               popularity, and known positives
    validated  `popular`, with a twentieth of the events held back
    feed       `model`, put on the devices by the feed
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import module, options_of, print_line, watch, words_of
from recsys.config import TrainConfig, TwoTowerConfig, ValidationConfig
from recsys.data.batches import BatchSource, read_ahead
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.store import EVENTS_OF_A_SHARD, InteractionStore, write_manifest, write_shard
from recsys.data.training_events import training_events

_CASES = ("ids", "history", "known", "others", "model", "popular", "validated", "feed")
_WHOLE_MODEL = ("model", "popular", "validated", "feed")
_EVENTS_OF_A_USER = 100
_N_ITEMS = 100_000
_TOKENS = 8
_RUNS = 5
_EXAMPLES_OF_A_RUN = 8_000_000


def main() -> None:
    """Prints a line for each case."""
    options = _parser().parse_args()
    if options.store is not None:
        print(json.dumps(_speeds(options)))
        return
    with tempfile.TemporaryDirectory(prefix="recsys-input-", dir=options.tmp) as folder:
        store = Path(folder) / "store"
        _make_store(store, options.rows)
        for case in options.case or _CASES:
            name = case if case == "ids" else f"{case} {options.history}"
            _measure(store, case, f"{options.rows} rows, {name}", options)


def _measure(store: Path, case: str, label: str, options: argparse.Namespace) -> None:
    """Measures a case in a process of its own, and prints its line."""
    command = module("benchmarks.input_pipeline")
    command += words_of(store=store, rows=options.rows, batch=options.batch)
    watched = watch([*command, *words_of(history=options.history, case=case)])
    speeds = watched.result["speeds"]
    print_line("input_pipeline", label, speeds, "examples/s", watched.peak_rss_mib)


def _parser() -> argparse.ArgumentParser:
    parser = options_of("input_pipeline", __doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="events of the store")
    parser.add_argument("--history", type=int, default=50, help="items of a history")
    parser.add_argument("--batch", type=int, default=4096, help="examples of a batch")
    parser.add_argument("--case", action="append", choices=_CASES, help="measure these alone")
    parser.add_argument("--tmp", type=Path, help="folder for the store; else the system's")
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    return parser


def _make_store(folder: Path, n_rows: int) -> None:
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
    return pa.table(
        {
            "user_id": ids.take(pa.array(user)),
            "user_row": (1 + first_user + user).astype(np.int32),
            "item_row": item,
            "timestamp": rng.integers(1_400_000_000, 1_700_000_000, n),
        }
    )


def _speeds(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the examples/s of each run of one case, and the seconds of opening the store."""
    started = time.perf_counter()
    store = InteractionStore.open(options.store)
    opened = time.perf_counter() - started
    source = _source(store, options)
    n_batches = max(1, min(_EXAMPLES_OF_A_RUN // options.batch, source.steps_per_epoch - 1))
    batches, speeds = iter(_reader(source, options.case[0])), []
    next(batches)
    for _ in range(_RUNS):
        started = time.perf_counter()
        for _ in range(n_batches):
            next(batches)
        speeds.append(n_batches * options.batch / (time.perf_counter() - started))
    return {"speeds": speeds, "open": opened}


def _reader(source: BatchSource, case: str) -> Iterable[Any]:
    if case != "feed":
        return read_ahead(source)
    # JAX and Keras are started in this case alone.
    from recsys.embedding import TableConfig, activate, table_layout
    from recsys.training.prefetch import BatchIterator

    activate(table_layout([TableConfig("items", 1 + _N_ITEMS, 64)]))
    return BatchIterator(source)


def _source(store: InteractionStore, options: argparse.Namespace) -> BatchSource:
    case = options.case[0]
    is_model = case in _WHOLE_MODEL
    is_popular = case in ("popular", "validated")
    model = TwoTowerConfig(
        history=options.history,
        history_of="others" if case == "others" else "past",
        id_dropout=0.1 if is_model else 0.0,
        new_user_share=0.1 if is_model else 0.0,
    )
    if case in ("ids", "known"):
        model = model.model_copy(update={"history": 0})
    train = TrainConfig(
        batch_size=options.batch,
        epochs=2 + _RUNS,
        uniform_negatives=options.batch if is_popular else 256 if is_model else 0,
        negative_power=0.75 if is_popular else 0.0,
        known_positives=options.history if case == "known" or is_popular else 0,
        validation=ValidationConfig() if case == "validated" else None,
    )
    features = (_bags("genres", 1 + _N_ITEMS),) if is_model else ()
    of_users = (_bags("segment", 1 + options.rows),) if is_model else ()
    names = ["", *(str(row) for row in range(_N_ITEMS))]
    catalogue = Catalogue(names, names, features)
    return BatchSource(training_events(store.train, train), catalogue, model, train, of_users)


def _bags(name: str, n_rows: int) -> FeatureBags:
    rows = max(n_rows // _EVENTS_OF_A_USER, 1 + _N_ITEMS) if name == "segment" else n_rows
    bags = np.random.default_rng(0).integers(0, 1000, (rows + 1, _TOKENS), np.int32)
    return FeatureBags(name, 1000, bags)


if __name__ == "__main__":
    main()
