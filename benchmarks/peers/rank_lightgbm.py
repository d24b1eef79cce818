# /// script
# requires-python = "==3.11.*"
# dependencies = ["lightgbm==4.6.0", "numpy>=2,<3", "scipy"]
# ///
"""LightGBM on the features of a row, or on statistics of earlier rows without ids."""

import itertools
from typing import Any

import lightgbm
import numpy as np
import scipy.sparse

from benchmarks.measure import answer
from benchmarks.peers.rank_case import TEST, TRAIN, VALID, RankCase

GRID = {"num_leaves": (15, 63), "min_data_in_leaf": (20,)}


def columns_of(case: RankCase, statistics: bool) -> tuple[scipy.sparse.csr_matrix, list[int]]:
    """Returns columns `[n, columns]`, and which of them are categories."""
    singles = {name: rows for name, rows in case.tokens.items() if rows.ndim == 1}
    if statistics:
        singles = {name: of for name, of in singles.items() if name not in ("user", "item")}
    numbers = [np.column_stack([*singles.values()])] + [case.statistics] * statistics
    parts = [scipy.sparse.csr_matrix(of.astype(np.float32)) for of in numbers]
    for rows in (rows for rows in case.tokens.values() if rows.ndim == 2):
        row, place = np.nonzero(rows)
        entries = np.ones(len(row), np.float32), (row, rows[row, place])
        parts.append(scipy.sparse.csr_matrix(entries, (len(rows), rows.max() + 1)))
    return scipy.sparse.hstack(parts).tocsr(), [*range(len(singles))]


def main(case: str, out: str, seed: int, statistics: bool) -> dict[str, Any]:
    """Writes the probability of each row, of the settings that the valid part chose."""
    rows = RankCase.load(case)
    columns, categories = columns_of(rows, statistics)

    def some(which: np.ndarray) -> lightgbm.Dataset:
        return lightgbm.Dataset(columns[which], rows.label[which], categorical_feature=categories)

    more = {"objective": "binary", "learning_rate": 0.05, "seed": seed, "verbose": -1}
    more |= {"bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.8}
    best: tuple[float, dict[str, Any], int] | None = None
    for values in itertools.product(*GRID.values()):
        settings = {**dict(zip(GRID, values, strict=True)), **more}
        parts = some(rows.is_in(TRAIN)), [some(rows.is_in(VALID))]
        stop = lightgbm.early_stopping(30, verbose=False)
        model = lightgbm.train(settings, parts[0], 1000, parts[1], callbacks=[stop])
        loss = model.best_score["valid_0"]["binary_logloss"]
        if best is None or loss < best[0]:
            best = loss, settings, model.best_iteration
    assert best is not None  # noqa: S101
    model = lightgbm.train(best[1], some(rows.part < TEST), best[2])
    np.save(out, model.predict(columns))
    return {"valid": best[0], "settings": best[1], "trees": best[2]}


if __name__ == "__main__":
    answer(main)
