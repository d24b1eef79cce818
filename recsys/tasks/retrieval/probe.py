"""The candidates and the probe of a retrieval model's folder, as computed in training.

candidates.npy    embeddings of all items
probe.npz         queries and their embeddings

Evaluation and export must compute the same embeddings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.dataset import CANDIDATES, seal_candidates
from recsys.data.event_features import FOLDER, time_column_of
from recsys.data.event_log import EventLog
from recsys.distributed.coordination import agreed, is_primary, jointly
from recsys.embedding.saved_arrays import NpyFile
from recsys.models.inference import Inference, embed_queries
from recsys.models.inputs import Given, ModelInputs
from recsys.models.retrieval_model import RetrievalModel
from recsys.tasks.probe_files import check_equal, reading, times_before
from recsys.tasks.raw_events import MISSING, RAW, RawEvents

_PROBE = "probe.npz"
_QUERIES = 1000


def save_candidates(folder: Path, model: RetrievalModel, inputs: ModelInputs) -> None:
    """Writes `candidates.npy` block by block; all processes embed, the first one writes.

    Args:
        folder: The model folder.
        model: The model.
        inputs: Vocabularies, features and histories of users and items.

    Raises:
        OSError: The disk is full.
        RecsysError: The disk is full, in one of several processes.
    """
    file = None
    for block in Inference(model).catalogue_blocks(inputs):
        if is_primary():
            shape = inputs.catalogue.n_rows, block.shape[1]
            file = file or NpyFile(folder / CANDIDATES, shape)
            file.write(block)
    agreed(lambda: seal_candidates(folder, file.close()) if file else None)


def save_probe(folder: Path, model: RetrievalModel, inputs: ModelInputs, log: EventLog) -> None:
    """Writes `probe.npz`: queries at events of a log, and their embeddings.

    Args:
        folder: The model folder.
        model: The model.
        inputs: Vocabularies, features and histories of users and items.
        log: The training positives.
    """
    config, users = model.spec.config, inputs.users
    events = np.linspace(0, len(log) - 1, min(_QUERIES, len(log))).astype(np.int64)
    user_row = np.array(log.user_row[events])
    history = log.histories(events, config.history)
    # Includes a user without a row, one without a history, and users with only features.
    user_row[:1], history[1:2] = 0, 0
    untrained = np.flatnonzero((users.row_counts == 0) & users.has_id())[: len(events) // 10]
    user_row[len(events) - len(untrained) :] = untrained
    past, length = log.history, config.history + 1
    times = times_before(past, past.offsets[log.user_index(events)], past.ends(events), length)
    times[1:2] = MISSING
    features, time_column = inputs.event_features, time_column_of(folder / FOLDER)
    raw = RawEvents.drawn(features, time_column, np.array(log.timestamp[events]), times)
    names = [x.name for x in inputs.event_inputs(config)]
    given = raw.given(features, time_column, names)
    query = embed_queries(model, user_row, history, inputs, given)
    arrays: dict[str, Any] = {"user_row": user_row, "history": history, "query": query}
    arrays |= {**given, **raw.arrays()}
    agreed(lambda: np.savez(folder / _PROBE, **arrays))


@dataclasses.dataclass(frozen=True)
class Probe:
    """Queries with the embeddings that were computed in training, and embeddings of all items.

    Attributes:
        user_row: User rows of the queries `[probes]` int32.
        history: Item rows of their histories `[probes, history]` int32.
        query: Embeddings of the queries `[probes, dim]` float32.
        candidates: Embeddings of all items `[item rows, dim]` float32.
        given: Context, attributes and times `[probes, …]` by input.
        raw: Their raw values; None in a folder of an earlier version.
    """

    user_row: np.ndarray
    history: np.ndarray
    query: np.ndarray
    candidates: np.ndarray
    given: Given = dataclasses.field(default_factory=dict)
    raw: RawEvents | None = None


def read_probe(folder: Path) -> Probe:
    """Reads `probe.npz` and `candidates.npy` of a model folder.

    Raises:
        RecsysError: A file is missing or damaged.
    """
    with reading(folder / _PROBE) as arrays:
        candidates = np.load(folder / CANDIDATES, mmap_mode="r", allow_pickle=False)
        own = {name: arrays.pop(name) for name in ("user_row", "history", "query")}
        given = {name: x for name, x in arrays.items() if not name.startswith(RAW)}
        return Probe(**own, candidates=candidates, given=given, raw=RawEvents.of(arrays))


def check_probe(
    folder: Path, probe: Probe, query: np.ndarray, parts: Iterable[tuple[slice, np.ndarray]]
) -> None:
    """Checks that both towers compute the same as in training.

    Args:
        folder: Model folder, for the message.
        probe: The results in training.
        query: Embeddings `[probes, dim]` of the probe's queries, computed now.
        parts: Item rows and their embeddings `[n, dim]`, computed now; with several processes,
            the part of this process.

    Raises:
        RecsysError: They differ from those in training (R311).
    """
    of_parts = [(0.0, 0.0), *(_compared(probe.candidates[rows], part) for rows, part in parts)]
    of_items = np.max(jointly(lambda: np.max(of_parts, axis=0).tolist()), axis=0)
    pairs = (_compared(probe.query, query), of_items)
    check_equal(folder, float(max(by / max(1.0, largest) for largest, by in pairs)))


def _compared(trained: np.ndarray, now: np.ndarray) -> tuple[float, float]:
    """Returns the largest magnitude of the embeddings in training, and the largest difference."""
    largest = float(np.abs(trained).max(initial=0.0))
    return largest, float(np.abs(trained - now).max(initial=0.0))
