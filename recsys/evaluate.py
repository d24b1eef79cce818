"""`python -m recsys.evaluate`: a model against the held-out events, and the verdict.

Exact over the full catalogue, for every held-out event, beside a popularity
baseline and the last blessed model on the same queries.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.config import EvaluateStage
from recsys.config_file import load_stage
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluation.example_users import example_users
from recsys.evaluation.metrics import per_query, per_user
from recsys.evaluation.queries import Protocol, Queries, make_queries
from recsys.evaluation.ranking import Ranking, Scorer, rank
from recsys.evaluation.verdict import judge
from recsys.model import SavedModel, load_model
from recsys.model.inference import embed_catalogue, embed_queries
from recsys.model.saved import check_probe, read_probe
from recsys.process import stage_main

_OTHER: dict[Protocol, Protocol] = {"each_moment": "at_cut", "at_cut": "each_moment"}
_FEW = 5
Metrics = dict[str, np.ndarray]


def evaluate(
    stage: EvaluateStage, model: Path, data: Path, out: Path, blessed: Path | None = None
) -> dict[str, Any]:
    """Evaluates a model and decides on it.

    Args:
        stage: The metrics and the conditions.
        model: Model folder.
        data: Data folder with the held-out events.
        out: Folder to write `evaluation.json` into.
        blessed: Model folder of the last blessed model, if there is one.

    Returns:
        What `evaluation.json` holds (see `docs/architecture.md`).

    Raises:
        RecsysError: Nothing is held out, a folder is damaged, or a score is no
            number.
    """
    store = InteractionStore.open(data / "store")
    saved, candidates = _load_checked(model)
    # Those of the model leave out what its validation held back.
    items = Vocabulary.load(data / "vocabulary" / "items.parquet")
    evaluation = _Evaluation(stage, store, saved, candidates, items.row_counts)
    headline = evaluation.measure(stage.evaluate.query)
    other = evaluation.measure(_OTHER[stage.evaluate.query])
    last = None
    if blessed is not None and stage.bless.over_blessed:
        last = evaluation.blessed_metrics(*_load_checked(blessed), headline.queries)
    metrics, popularity = headline.mean(headline.model), headline.mean(headline.popularity)
    verdict = judge(stage.bless, metrics, popularity, last)
    examples, unknown = example_users(stage.report_users, store, saved, candidates)
    result = {
        "query": stage.evaluate.query,
        **headline.summary(),
        "blessed_model": last,
        "slices": headline.slices(),
        _OTHER[stage.evaluate.query]: other.summary(),
        f"coverage@{headline.ranking.top.shape[1]}": headline.coverage(),
        "verdict": dataclasses.asdict(verdict),
        "examples": examples,
        "unknown_report_users": unknown,
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False)
    (out / "evaluation.json").write_text(text + "\n", encoding="utf-8")
    return result


class _Evaluation:
    """Scores queries with a model, and ranks what they should have found."""

    def __init__(
        self,
        stage: EvaluateStage,
        store: InteractionStore,
        saved: SavedModel,
        candidates: np.ndarray,
        counts: np.ndarray,
    ) -> None:
        self._ks, self._store, self._saved = stage.evaluate.k, store, saved
        self._most = stage.evaluate.max_queries
        self._candidates = candidates
        self._counts = counts.astype(np.float32)

    def measure(self, kind: Protocol) -> _Measured:
        """Returns the metrics of the model and of popularity for queries of a kind."""
        queries = make_queries(self._store, kind, self._most)
        embedded = embed_queries(
            self._saved.model,
            queries.user_row,
            queries.histories(self._saved.stage.model.history),
            self._saved.inputs,
        )
        _check_numbers(embedded)
        ranking = self._rank(lambda block: embedded[block] @ self._candidates.T, queries)
        popular = self._rank(
            lambda block: np.broadcast_to(
                self._counts, (block.stop - block.start, len(self._counts))
            ),
            queries,
        )
        return _Measured(
            queries=queries,
            is_known=self._store.trained_user[queries.user] >= 0,
            n_users=len(self._store.eval_users.rows),
            n_candidates=int(self._saved.catalogue.is_item.sum()),
            ranking=ranking,
            model=self._metrics(ranking, queries),
            popularity=self._metrics(popular, queries),
        )

    def blessed_metrics(
        self, last: SavedModel, candidates: np.ndarray, queries: Queries
    ) -> dict[str, float]:
        """Returns the metrics of another model, which has its own rows, on `queries`."""
        to_last = _translation(self._saved.items, last.items)
        ids = self._store.eval_users.ids.take(pa.array(queries.user))
        history = to_last[queries.histories(last.stage.model.history)]
        embedded = embed_queries(last.model, last.users.rows(ids), history, last.inputs)
        _check_numbers(embedded)
        # What the other model doesn't know it can't recommend.
        missing = ~last.catalogue.is_item[to_last]

        def scorer(block: slice) -> np.ndarray:
            return np.where(missing, -np.inf, (embedded[block] @ candidates.T)[:, to_last])

        metrics = self._metrics(self._rank(scorer, queries), queries)
        return _mean_over_users(metrics, queries, len(self._store.eval_users.rows))

    def _rank(self, scorer: Scorer, queries: Queries) -> Ranking:
        return rank(
            scorer, queries.positives, queries.seen, self._saved.catalogue.is_item, min(self._ks)
        )

    def _metrics(self, ranking: Ranking, queries: Queries) -> Metrics:
        return per_query(ranking.ranks, queries.positives.owner(), len(queries), self._ks)


@dataclasses.dataclass(frozen=True)
class _Measured:
    """The metrics of every query, and their means; `is_known`: of a user seen in training."""

    queries: Queries
    is_known: np.ndarray
    n_users: int
    n_candidates: int
    ranking: Ranking
    model: Metrics
    popularity: Metrics

    def mean(self, metrics: Metrics, which: np.ndarray | None = None) -> dict[str, float]:
        """Returns the means over the users of the queries `which`."""
        return _mean_over_users(metrics, self.queries, self.n_users, which)

    def summary(self) -> dict[str, Any]:
        """Returns the counts and the means over all queries."""
        return {
            "users": len(np.unique(self.queries.user)),
            "users_held_out": self.n_users,
            "queries": len(self.queries),
            "positives": len(self.queries.positives.rows),
            "candidates": self.n_candidates,
            "metrics": self.mean(self.model),
            "baselines": {"popularity": self.mean(self.popularity)},
        }

    def slices(self) -> list[dict[str, Any]]:
        """Returns the means over parts of the queries; parts without any are left out."""
        known = self.is_known
        length = np.diff(self.queries.seen.offsets)
        parts = {
            "users known to training": known,
            "users new since the cut": ~known,
            "queries without a history": length == 0,
            f"queries with a history of 1 to {_FEW}": (length > 0) & (length <= _FEW),
            f"queries with a longer history than {_FEW}": length > _FEW,
        }
        return [
            {
                "name": name,
                "users": len(np.unique(self.queries.user[which])),
                "queries": int(which.sum()),
                "metrics": self.mean(self.model, which),
                "baselines": {"popularity": self.mean(self.popularity, which)},
            }
            for name, which in parts.items()
            if which.any()
        ]

    def coverage(self) -> float:
        """Returns the share of the catalogue that is in at least one top list [0..1]."""
        shown = self.ranking.top[np.isfinite(self.ranking.top_scores)]
        return len(np.unique(shown)) / self.n_candidates


def _load_checked(folder: Path) -> tuple[SavedModel, np.ndarray]:
    """Returns the model in `folder` and its item embeddings, once both towers are proven."""
    saved = load_model(folder)
    candidates = embed_catalogue(saved.model, saved.inputs)
    probe = read_probe(folder)
    query = embed_queries(saved.model, probe.user_row, probe.history, saved.inputs)
    _check_numbers(query, candidates)
    check_probe(folder, probe, query, candidates)
    return saved, candidates


def _mean_over_users(
    metrics: Mapping[str, np.ndarray],
    queries: Queries,
    n_users: int,
    which: np.ndarray | None = None,
) -> dict[str, float]:
    chosen = slice(None) if which is None else which
    user = queries.user[chosen]
    return {
        name: float(np.nanmean(per_user(values[chosen], user, n_users)))
        for name, values in metrics.items()
    }


def _translation(ours: Vocabulary, theirs: Vocabulary) -> np.ndarray:
    """Returns their row of each of our rows `[our rows]` int32; 0 where they have none."""
    return theirs.rows(ours.ids_of_rows)


def _check_numbers(*embeddings: np.ndarray) -> None:
    for embedded in embeddings:
        bad = int((~np.isfinite(embedded)).any(axis=1).sum())
        if bad:
            raise RecsysError(
                "R402",
                "Every embedding must be finite, else ranks mean nothing.",
                "Train again with lower learning rates.",
                f"{bad} of {len(embedded)} embeddings are not",
            )


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m recsys.evaluate", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of evaluation.json")
    parser.add_argument("--blessed", type=Path, help="model folder to compare with")
    options = parser.parse_args(arguments)
    stage = load_stage(options.config, EvaluateStage)
    result = evaluate(stage, options.model, options.data, options.out, options.blessed)
    return {
        "evaluation": str(options.out / "evaluation.json"),
        "metrics": {**result["metrics"], "baselines": result["baselines"]},
        **result["verdict"],
    }


if __name__ == "__main__":
    stage_main(main)
