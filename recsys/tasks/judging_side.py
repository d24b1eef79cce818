"""The judging side of a task: the case on which models are measured, and their values."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from recsys.data.catalogue import FeatureBags
from recsys.metrics import Statistics, Values
from recsys.strict import Strict

if TYPE_CHECKING:  # It loads Keras.
    from keras.distribution import DeviceMesh

    from recsys.data.dataset import Data

MODEL, BLESSED = "model", "blessed_model"
"""Names of the evaluated model and of the last blessed one among the systems."""
RETRIEVER, RERANKED = "retriever", "reranked"
"""Names of a pair's other lists: those of its retriever, or, if its ranker is left out, the lists
that the ranker has ordered."""
STAGES = (RETRIEVER, RERANKED)
Progress = Callable[[int, int], None]
"""Called with the number of finished queries and the total."""
SystemProgress = Callable[[str, int, int], None]
"""Called with the name of a system, the number of finished queries and the total."""


class LeftOutError(Exception):
    """A baseline can't be fitted to these data; the text is the reason, as a sentence."""


def of_some_users(user: np.ndarray, most: int, seed: int = 0) -> np.ndarray:
    """Returns which queries to keep `[n]` bool, so that at most `most` are left.

    Users are drawn at random, each with all queries; a user with too many for the remaining
    number is skipped. If none fits, the user with the fewest queries is kept.
    """
    users, counts = np.unique(user, return_counts=True)
    chosen, room = [], most
    for place in np.random.default_rng(seed).permutation(len(users)).tolist():
        if counts[place] <= room:
            chosen.append(place)
            room -= int(counts[place])
        if not room:
            break
    return np.isin(user, users[chosen or [int(counts.argmin())]])


class Baseline(Strict):
    """A model that is fitted in seconds; a subclass is registered under a name.

    Its fields are its options in a config.
    """

    title: ClassVar[str]
    """Name in the report and the verdict."""
    task: ClassVar[str] = "retrieval"
    """Name of the task whose models it is compared with."""
    cure: ClassVar[str] = ""
    """What to set in the config if a model is significantly worse, as `key: value`."""

    def fit(self, data: Any) -> Any:
        """Learns from training events.

        Args:
            data: The training data from the judging side of the task; for retrieval, a
                `recsys.tasks.retrieval.judging.baselines.BaselineData`, for ranking a
                `recsys.tasks.ranking.judging.baselines.TrainingRows`.

        Returns:
            An object for the judging side to measure; for retrieval, one whose `scorer(queries)`
            returns a scorer of the items, and reads only the queries' `seen`; for ranking, one
            whose `predict(rows)` returns the predictions `[n]` of each label by name.

        Raises:
            LeftOutError: It can't be fitted to these data; the text is the reason.
        """
        raise NotImplementedError


class Case(Protocol):
    """Queries or rows on which all systems are measured, so that comparisons are paired."""

    @property
    def user(self) -> np.ndarray:
        """Index of each query's user `[n]`; the bootstrap draws users."""

    @property
    def counts(self) -> Mapping[str, Any]:
        """Fields of `evaluation.json`, including `users` and `queries`."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The values of one system.

    Attributes:
        values: Value of each query `[n]`, or statistics of each user, by key of the metric.
        totals: Values without an interval, by key.
        seconds: Time taken [s].
    """

    values: Values
    totals: Mapping[str, float]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of a case.

    Attributes:
        kind: Property by which the slices of this kind differ.
        name: Name for the rules of the config and for the report.
        of: What the mask selects from: `queries`, or another name that the task defines.
        which: Mask of the queries `[n]`, or of the things in `of`. Without any, the slice is
            unreachable for all systems, and every figure is 0.
        note: Description for the report.
        sizes: Number of `users`, `queries` and others.
    """

    kind: str
    name: str
    of: str
    which: np.ndarray
    note: str = ""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


_MOST_VALUES = 12


def slices_of_feature(feature: FeatureBags, rows: np.ndarray, of: str) -> Iterator[Slice]:
    """Yields a slice for each of the most frequent tokens of a feature.

    Args:
        feature: The feature.
        rows: Row of the item or user of each thing in `of` `[n]`.
        of: What the slices select from.
    """
    bags = np.asarray(feature.bags[rows])
    tokens, counts = np.unique(bags[bags > 0], return_counts=True)
    chosen = tokens[np.argsort(-counts, kind="stable")][:_MOST_VALUES]
    for token in chosen.tolist():
        name = f"value {token}" if feature.tokens is None else feature.tokens[token]
        which = (bags == token).any(axis=1)
        yield Slice(feature.name, f"{feature.name}: {name}", of, which)


SystemT = TypeVar("SystemT")
CaseT = TypeVar("CaseT", bound=Case)
MeasuredT = TypeVar("MeasuredT", bound=Measured)


class JudgingSide(abc.ABC, Generic[SystemT, CaseT, MeasuredT]):
    """Measures the models of a task, in a process of Keras on JAX.

    The evaluation opens the systems, makes one case, measures every system and baseline on it,
    and computes intervals, comparisons and the decision. In several processes each calls the same
    methods in the same order.

    Args:
        stage: Config of the evaluation, an `EvaluateStage`.
        data: Data folder with held-out events.

    Attributes:
        stage: Config of the evaluation.
        data: Data folder with held-out events.
    """

    sliced: ClassVar[Collection[str]] = ()
    """Names of the metrics of slices, besides the metrics that the decision uses."""

    def __init__(self, stage: Any, data: Data) -> None:
        self.stage, self.data = stage, data

    @abc.abstractmethod
    def open_folder(self, folder: Path, name: str, mesh: DeviceMesh | None) -> SystemT:
        """Returns the system for a model folder.

        Args:
            folder: A model folder.
            name: Display name.
            mesh: Devices to split tables over; None: this process holds them whole.
        """

    @abc.abstractmethod
    def open_bundle(
        self, bundle: Path, manifest: Mapping[str, Any], name: str, mesh: DeviceMesh | None
    ) -> SystemT:
        """Returns the system for a bundle whose files match its manifest."""

    @abc.abstractmethod
    def open_model(self, model: Any, name: str) -> SystemT:
        """Returns the system for a `TrainedModel` or a built model."""

    @abc.abstractmethod
    def case(self, systems: Mapping[str, SystemT]) -> CaseT:
        """Returns the case for the model and, if there is one, the last blessed model."""

    @abc.abstractmethod
    def measure(self, system: SystemT, case: CaseT, progress: Progress | None) -> MeasuredT:
        """Returns the values of a system."""

    @abc.abstractmethod
    def measure_baseline(
        self, baseline: Baseline, case: CaseT, progress: Progress | None
    ) -> MeasuredT:
        """Fits a baseline and returns its values.

        Raises:
            LeftOutError: The baseline can't be fitted to these data.
        """

    def other_cases(
        self, systems: Mapping[str, SystemT]
    ) -> Mapping[str, tuple[CaseT, Sequence[Baseline]]]:
        """Returns further cases by name, each with its baselines besides the model."""
        return {}

    def slices(self, case: CaseT) -> Sequence[Slice]:
        """Returns the slices to measure; none is empty."""
        return ()

    def slice_values(
        self, part: Slice, case: CaseT, measured: MeasuredT, keys: Collection[str]
    ) -> Values:
        """Returns the values in a slice, NaN for queries that are not in it.

        By default this masks the values of queries, and drops users from pooled metrics. A pooled
        metric is left out if the slice has only some queries of a user.

        Args:
            part: The slice, with a mask.
            case: The case.
            measured: The values of a system on the whole case.
            keys: Keys of the metrics that are needed.
        """
        _, user, n_queries = np.unique(case.user, return_inverse=True, return_counts=True)
        n_inside = np.bincount(user, part.which, len(n_queries))
        is_whole = ((n_inside == 0) | (n_inside == n_queries)).all()
        values: dict[str, np.ndarray | Statistics] = {}
        for key in keys:
            x = measured.values[key]
            if isinstance(x, np.ndarray):
                values[key] = np.where(part.which, x, np.nan)
            elif is_whole:
                values[key] = x._replace(counts=x.counts * (n_inside > 0))
        return values

    def first_stage(
        self, case: CaseT, measured: MeasuredT
    ) -> tuple[MeasuredT, Mapping[str, Any]] | None:
        """Returns the values of the first of two stages alone, and fields of `pair`.

        None for a model of one stage.
        """
        return None

    def without_second_stage(self, system: SystemT) -> SystemT:
        """Returns the first stage of a system."""
        return system

    def more(
        self, case: CaseT, systems: Mapping[str, SystemT], measured: Mapping[str, MeasuredT]
    ) -> dict[str, Any]:
        """Returns further fields of `evaluation.json`, such as example users."""
        return {}
