"""`rank_probe.npz` of a ranking model's folder: rows with the scores that training computed.

Judging and export must compute the same scores. The arrays are

    user_row, item_row   [n] int32        rows of the vocabularies, 0 for unknown ids
    history              [n, history]     item rows, the newest first, padded with 0
    <input>              [n, …]           context, attributes and features of rows, encoded
    raw.…                                 raw values of context and attributes, see `RawEvents`
    score.<label>        [n] float32      log odds given nothing, or amount, uncalibrated
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.event_features import FOLDER, time_column_of
from recsys.data.event_log import input_dtype
from recsys.data.statistics import StatisticsState, labels_of_users
from recsys.data.store import InteractionStore
from recsys.distributed.coordination import agreed
from recsys.models.inference import ScoreInference
from recsys.models.inputs import ModelInputs
from recsys.models.ranking_model import RETRIEVER
from recsys.tasks.probe_files import check_equal, reading, times_before
from recsys.tasks.ranking.rows import Read, Rows, is_row_feature, model_inputs
from recsys.tasks.raw_events import MISSING, RAW, RawEvents

PROBE = "rank_probe.npz"
_SCORE = "score."
_ROWS, _SEED = 1000, 0


@dataclasses.dataclass(frozen=True)
class RankProbe:
    """Rows with the scores that were computed in training.

    Attributes:
        rows: `user_row` and `item_row` `[n]` int32, `history` `[n, history]`, and context,
            attributes and features of rows by input, as `Rows.read` returns them.
        scores: Log odds given nothing, or amount, uncalibrated, `[n]` float32 by label.
        raw: Raw values of context and attributes.
    """

    rows: Read
    scores: dict[str, np.ndarray]
    raw: RawEvents | None


def save_probe(
    folder: Path, inference: ScoreInference, store: InteractionStore, inputs: ModelInputs
) -> None:
    """Writes the probe: rows of the training data, with drawn raw values of events.

    Statistics are of all rows, as in a bundle.

    Every process calls it.

    Args:
        folder: The model folder.
        inference: Computes scores of the model.
        store: The store that it trained on.
        inputs: Vocabularies and features, with the counts of its training rows.
    """
    model, config = inference.model, inference.model.spec.config
    rows = Rows.of(store, "train", inputs, config)
    n_rows = len(rows.log)
    numbers = np.linspace(0, n_rows - 1, min(_ROWS, n_rows)).astype(np.int64)
    read = rows.read(numbers)
    # Includes a user without a row, an empty history, and an item without a row.
    read["user_row"][:1], read["history"][1:2], read["item_row"][2:3] = 0, 0, 0
    past, log = store.train.history, rows.log
    first = past.offsets[log.user_index(numbers)]
    times = times_before(past, first, log.history_end[numbers], config.history + 1)
    times[1:2] = MISSING
    features, column = inputs.event_features, time_column_of(folder / FOLDER)
    of_events = [one for one in features if not is_row_feature(one)]
    raw = RawEvents.drawn(of_events, column, np.array(read["timestamp"]), times)
    read |= _newest_statistics(folder, raw, read, inputs)
    read |= raw.given(of_events, column, [x.name for x in inputs.event_inputs(config)])
    names = ["user_row", "item_row", "history"]
    names += [x.name for x in inputs.event_inputs(config)]
    names += [one.name for one in features if is_row_feature(one)]
    if config.stage_one:
        read[RETRIEVER] = _drawn_places(n_rows=len(numbers))
        names.append(RETRIEVER)
    read = {name: read[name] for name in names}

    def of_rows(at: np.ndarray) -> Read:
        return model_inputs({name: x[at] for name, x in read.items()}, inputs, config)

    scores = np.concatenate([*inference.blocks(of_rows, len(numbers))])
    of_labels = {f"{_SCORE}{name}": scores[:, n] for n, name in enumerate(model.label_names)}
    arrays: dict[str, Any] = {**read, **raw.arrays(), **of_labels}
    agreed(lambda: np.savez(folder / PROBE, **arrays))


def _drawn_places(n_rows: int) -> np.ndarray:
    """Returns the input `retriever` `[n_rows, 3]` float32 of random places in lists.

    Every fourth list is unknown, and every fourth item is in none.
    """
    rng, number = np.random.default_rng(_SEED), np.arange(n_rows)
    is_listed, is_known = number % 4 > 1, number % 4 > 0
    place, score = rng.uniform(0.01, 1, n_rows), rng.uniform(-5, 5, n_rows)
    columns = place * is_listed, score * is_listed, is_known
    return np.stack(columns, axis=1).astype(np.float32)


def _newest_statistics(folder: Path, raw: RawEvents, read: Read, inputs: ModelInputs) -> Read:
    """Returns the statistics that a bundle has, and takes labels out of the raw histories.

    Labels of a history would replace the statistics of its user.
    """
    statistics = [one for one in inputs.event_features if is_row_feature(one)]
    if not statistics:
        return {}
    for label in labels_of_users(statistics, inputs.labels).values():
        if label.column in raw.history:
            raw.history[label.column][:] = ""
    state = StatisticsState.open(folder, "newest")
    found = state.features(read["user_row"], read["item_row"], inputs.catalogue)
    return {name: x.astype(input_dtype(x.dtype)) for name, x in found.items()}


def read_probe(folder: Path) -> RankProbe:
    """Reads `rank_probe.npz` of a model folder.

    Raises:
        RecsysError: The file is missing or damaged.
    """
    with reading(folder / PROBE) as arrays:
        raw = RawEvents.of(arrays)
    scores = {n.removeprefix(_SCORE): x for n, x in arrays.items() if n.startswith(_SCORE)}
    rows = {n: x for n, x in arrays.items() if not n.startswith((RAW, _SCORE))}
    return RankProbe(rows, scores, raw)


def check_probe(folder: Path, inference: ScoreInference, inputs: ModelInputs) -> None:
    """Checks that a model computes the same scores as in training.

    Args:
        folder: The model folder.
        inference: Computes scores of its model.
        inputs: Vocabularies and features of the folder.

    Raises:
        RecsysError: The scores differ from those in training (R311), or the probe is damaged.
    """
    probe, model = read_probe(folder), inference.model

    def of_rows(at: np.ndarray) -> Read:
        read = {name: x[at] for name, x in probe.rows.items()}
        return model_inputs(read, inputs, model.spec.config)

    n = len(probe.rows["item_row"])
    scores = np.concatenate([*inference.blocks(of_rows, n)]) if n else np.zeros((0, 1))
    trained = np.stack([probe.scores[name] for name in model.label_names], axis=1)
    largest = np.abs(trained).max(initial=1.0)
    check_equal(folder, float(np.abs(trained - scores).max(initial=0.0) / largest))
