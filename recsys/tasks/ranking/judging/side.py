"""The judging side of ranking: held-out rows with known labels, and the predictions of systems."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from recsys.data.hold_out import newest_events
from recsys.data.label_config import LabelConfig
from recsys.data.statistics import StatisticsState
from recsys.errors import RecsysError
from recsys.metrics import Values
from recsys.models.inputs import ModelInputs
from recsys.tasks.baseline_fits import on_primary
from recsys.tasks.judging_side import (
    MODEL,
    Baseline,
    JudgingSide,
    Progress,
    Slice,
    of_some_users,
)
from recsys.tasks.ranking.judging.baselines import ItemMean
from recsys.tasks.ranking.judging.case import Case, Measured, make_slices
from recsys.tasks.ranking.judging.labelled_rows import (
    NEGATIVES,
    LabelledRows,
    PairColumns,
    has_negatives,
)
from recsys.tasks.ranking.judging.report_figures import calibration, coverage, rates
from recsys.tasks.ranking.judging.systems import System, open_bundle, open_folder, open_object
from recsys.tasks.ranking.rows import Part, Rows, State, is_row_feature, no_labels

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh

    from recsys.data.dataset import Data

_OTHER: dict[State, State] = {"cut": "live", "live": "cut"}
_DRAWN = (
    "No row has label 0, so these are probabilities among the rows and"
    f" {NEGATIVES} random items for each; a model's, which are among all items, are converted. They"
    " are no rates of what is shown."
)


class RankingJudging(JudgingSide[System, Case, Measured]):
    """Compares the predictions of held-out rows with their labels."""

    sliced: ClassVar[Collection[str]] = ("roc_auc", "log_loss", "calibration_error")

    def __init__(self, stage: Any, data: Data) -> None:
        super().__init__(stage, data)
        self._trained: LabelledRows | None = None

    def open_folder(self, folder: Path, name: str, mesh: DeviceMesh | None) -> System:
        """Returns the system for a model folder.

        Raises:
            RecsysError: It is damaged (R310), computes other numbers than in training (R311), or
                shares no item with the data (R403).
        """
        return System(name, open_folder(folder, mesh), self.data)

    def open_bundle(
        self, bundle: Path, manifest: Mapping[str, Any], name: str, mesh: DeviceMesh | None
    ) -> System:
        """Returns the system for a bundle; raises `RecsysError` as `open_folder`, or R409."""
        return System(name, open_bundle(bundle, manifest), self.data)

    def open_model(self, model: Any, name: str) -> System:
        """Returns the system for a `TrainedModel`, or for a built model of these data."""
        return System(name, open_object(model, self.data), self.data)

    def case(self, systems: Mapping[str, System]) -> Case:
        """Returns the case of the state that the config chose.

        Raises:
            RecsysError: The data have no labels (R392), no held-out row has a known label (R415),
                or a rule is on a metric that none of the labels has (R416).
        """
        case = self._case(self.stage.evaluate.state, systems[MODEL].labels)
        for rule in self.stage.bless.all_rules():
            has_threshold = rule.at_least or rule.over_blessed or any(rule.over.values())
            if has_threshold and rule.metric not in case.keys:
                kinds = [f"{name} ({_words(kind)})" for name, kind in case.rows.kinds.items()]
                raise RecsysError(
                    "R416",
                    f"Thresholds must be on metrics that a label has: {', '.join(case.keys)}.",
                    "Name one of them in bless.metric or bless.rules, and in evaluate.metrics.",
                    f"{rule.metric}, with the labels {', '.join(kinds)}",
                )
        return case

    def other_cases(
        self, systems: Mapping[str, System]
    ) -> Mapping[str, tuple[Case, Sequence[Baseline]]]:
        """Returns the case of the other state, if the two differ."""
        if not self.data.store.split.has_cut:
            return {}
        other = _OTHER[self.stage.evaluate.state]
        return {other: (self._case(other, systems[MODEL].labels), [ItemMean()])}

    def measure(self, system: System, case: Case, progress: Progress | None) -> Measured:
        """Measures the predictions of a system."""
        started = time.monotonic()
        predictions = system.predict(case.rows, progress)
        return case.measured(predictions, time.monotonic() - started)

    def measure_baseline(
        self, baseline: Baseline, case: Case, progress: Progress | None
    ) -> Measured:
        """Measures the predictions of a baseline, which the first process fits."""
        started = time.monotonic()
        predicted = on_primary(lambda: baseline.fit(self._training(case)).predict(case.rows))
        return case.measured(predicted, time.monotonic() - started)

    def slices(self, case: Case) -> list[Slice]:
        """Returns the slices by user, item and features."""
        rows = case.rows
        return make_slices(
            rows,
            self.data.store.trained_user[rows.user] >= 0,
            (rows.item_row > 0) & (self._counts[rows.item_row] > 0),
            self.stage.evaluate.slices,
        )

    def slice_values(
        self, part: Slice, case: Case, measured: Measured, keys: Collection[str]
    ) -> Values:
        """Returns the values in a slice, from its rows."""
        return case.values(measured.scored, keys, part.which)

    def more(
        self, case: Case, systems: Mapping[str, System], measured: Mapping[str, Measured]
    ) -> dict[str, Any]:
        """Returns the state, and figures of the labels and of the features."""
        train, rows, scored = self._training(case), case.rows, measured[MODEL].scored
        return {
            "state": case.state,
            "negatives": {"per_row": NEGATIVES, "meaning": _DRAWN} if rows.is_drawn.any() else None,
            "labels": {
                name: {
                    "kind": kind,
                    "rows": int((~np.isnan(rows.labels[name])).sum()),
                    "calibration": calibration(scored[name]) if kind == "yes_no" else None,
                }
                for name, kind in rows.kinds.items()
                if name in scored
            },
            "label_rates": self._rates(train, rows),
            "coverage": coverage(train, rows),
        }

    def _rates(self, train: LabelledRows, held_out: LabelledRows) -> dict[str, Any] | None:
        store = self.data.store
        return rates(train, held_out, store.cut) if store.split.has_cut else None

    @functools.cached_property
    def _inputs(self) -> ModelInputs:
        return ModelInputs.of_data(self.data)

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """Training rows of each item row `[item rows]`."""
        return self._rows("train", "live").log.item_row.counts(self.data.catalogue.n_rows)

    def _rows(self, part: Part, state: State) -> Rows:
        has_statistics = any(map(is_row_feature, self._inputs.event_features))
        is_cut = part == "eval" and state == "cut"
        statistics = self._statistics if has_statistics and is_cut else None
        return Rows.of(self.data.store, part, self._inputs, PairColumns(), state, statistics)

    @functools.cached_property
    def _statistics(self) -> StatisticsState:
        return StatisticsState.open(self.data.folder, "cut")

    def _labels(self, names: Sequence[str]) -> dict[str, LabelConfig]:
        """Returns the labels of a model that the data have, in its order."""
        labels = {name: self.data.labels[name] for name in names if name in self.data.labels}
        if not labels:
            raise no_labels()
        return labels

    def _draws_negatives(self, label: str) -> bool:
        """Returns whether no row has label 0, so that negatives must be drawn."""
        logs = self.data.store.train_rows, self.data.store.eval_rows
        is_amount = self.data.labels[label].is_amount
        return not is_amount and not any(has_negatives(log, label) for log in logs if log)

    def _case(self, state: State, names: Sequence[str]) -> Case:
        config, labels = self.stage.evaluate, self._labels(names)
        part = self._rows("eval", state)
        rows = LabelledRows.of(part, np.arange(len(part.log)), labels)
        rows = rows.select(np.any([~np.isnan(x) for x in rows.labels.values()], axis=0))
        n_known = len(rows)
        if not n_known:
            raise RecsysError(
                "R415",
                "Some held-out row must have a known label, else there is nothing to compare with.",
                "Raise data.eval_share, add newer data, or lower data.interactions.label_after.",
                f"{len(part.log):,} held-out rows, none with the label {' or '.join(labels)}",
            )
        if n_known > config.max_queries:
            rows = rows.select(of_some_users(rows.user, config.max_queries, config.seed))
        n_users = len(np.unique(rows.user))
        if self._draws_negatives(rows.trained_label):
            rows = rows.with_negatives(config.seed, labels)
        counts = {
            "users": len(np.unique(rows.user)),
            "users_chosen": n_users,
            "users_held_out": len(self.data.store.eval_users.rows),
            "queries": len(rows),
            "rows": len(rows),
            "rows_held_out": len(part.log),
            "unknown_labels": len(part.log) - n_known,
        }
        return Case(state, rows, config.metrics, counts)

    def _training(self, case: Case) -> LabelledRows:
        """Returns the newest training rows, from which baselines learn."""
        if self._trained is None:
            config, part = self.stage.evaluate, self._rows("train", "live")
            newest = newest_events(part.log, config.baseline_events)
            labels = self._labels([*case.rows.labels])
            rows = LabelledRows.of(part, newest, labels)
            is_drawn = case.rows.is_drawn.any()
            self._trained = rows.with_negatives(config.seed, labels) if is_drawn else rows
        return self._trained


def _words(kind: str) -> str:
    return "yes or no" if kind == "yes_no" else "an amount"
