"""We evaluate the case; as a program: a digest of what we find, on whatever devices there are."""

from __future__ import annotations

import hashlib
import json
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")  # Before anything imports Keras.

import numpy as np

from benchmarks.evaluate_case.case import Case, Data, draw
from recsys.config import EvaluateConfig
from recsys.evaluation import measurement
from recsys.evaluation.queries import Queries
from recsys.evaluation.scores import DotProducts
from recsys.metrics.metric import Items
from recsys.ragged import Ragged


def evaluate(case: Case, data: Data) -> measurement.Measured:
    """Returns all metrics of `data` at all cut-offs."""
    users = np.arange(len(data.query))
    positives, seen = (_lists(rows) for rows in (data.positives, data.seen))
    is_item = np.arange(len(data.candidates)) > 0
    asked = measurement.Case(
        queries=Queries(users, users.astype(np.int32), seen, positives),
        items=Items(data.counts, is_item, data.candidates),
        ks=case.ks,
        metrics=EvaluateConfig().metrics,
    )
    return measurement.measure(DotProducts(data.query, data.candidates), asked)


def _lists(rows: np.ndarray) -> Ragged:
    n, width = rows.shape
    return Ragged(rows.reshape(-1), np.arange(n + 1, dtype=np.int64) * width)


def digest(found: measurement.Measured) -> str:
    """Returns a hash of every rank, list, score and metric, to the last bit."""
    ranking = found.ranking
    arrays = [ranking.ranks, ranking.n_ranked, ranking.top, ranking.top_scores]
    arrays += [found.per_query[name] for name in sorted(found.per_query)]
    arrays += [np.array([found.totals[name]]) for name in sorted(found.totals)]
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def main() -> None:
    """Evaluates the case that the command line names."""
    import jax

    case = Case.from_json(sys.argv[1])
    found = digest(evaluate(case, draw(case)))
    print(json.dumps({"devices": jax.device_count(), "digest": found}))


if __name__ == "__main__":
    main()
