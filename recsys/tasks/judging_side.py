"""The judging side of a task: what its models are measured on, and by what values."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from recsys.metrics.metric import Values
from recsys.strict import Strict

if TYPE_CHECKING:  # A room above, and Keras.
    from keras.distribution import DeviceMesh

    from recsys.data.dataset import Data
    from recsys.evaluation.config import EvaluateStage

MODEL, BLESSED = "model", "blessed_model"
"""Names of the evaluated model and of the last blessed one among the systems."""
Progress = Callable[[int, int], None]
"""Takes the number of finished queries, and of all."""
SystemProgress = Callable[[str, int, int], None]
"""Takes the name of a system, the number of finished queries, and of all."""


class LeftOutError(Exception):
    """A baseline can't be fitted to these data; the text is the reason, a sentence."""


class Baseline(Strict):
    """A recommender that is fitted in seconds; a subclass is registered under a name.

    Its fields are its options in a config.
    """

    title: ClassVar[str]
    """What the report and the verdict call it."""

    def fit(self, data: Any) -> Any:
        """Learns from training events.

        Args:
            data: The training data that the judging side of the task gives; of retrieval a
                `recsys.tasks.retrieval.baselines.baseline.BaselineData`.

        Returns:
            What the judging side measures; of retrieval an object whose `scorer(queries)` scores
            the items.

        Raises:
            LeftOutError: It can't be fitted to these data; the text says why.
        """
        raise NotImplementedError


class Case(Protocol):
    """Queries or rows that all systems are measured on, so that comparisons are paired."""

    @property
    def user(self) -> np.ndarray:
        """User of each query `[n]`; the bootstrap draws users."""

    @property
    def counts(self) -> Mapping[str, Any]:
        """Fields of `evaluation.json`; `users` and `queries` are among them."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The values of one system.

    Attributes:
        values: Value of each query `[n]`, or statistics of each user, by key of a metric.
        totals: Values without an interval, by key.
        seconds: Time that it took [s].
    """

    values: Values
    totals: Mapping[str, float]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of a case.

    Attributes:
        kind: Property that the slices of this kind differ in.
        name: Name for rules of the config and for the report.
        of: What it is a part of: `queries`, or something that the task knows.
        which: Mask of the queries `[n]`, or of what `of` names. Without any, it is what no system
            can find, and every figure is 0.
        note: Description for the report.
        sizes: Number of `users`, `queries` and others.
    """

    kind: str
    name: str
    of: str
    which: np.ndarray
    note: str = ""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)


SystemT = TypeVar("SystemT")
CaseT = TypeVar("CaseT", bound=Case)
MeasuredT = TypeVar("MeasuredT", bound=Measured)


class JudgingSide(abc.ABC, Generic[SystemT, CaseT, MeasuredT]):
    """Measures the models of a task, in a process of Keras on JAX.

    The evaluation opens the systems, makes one case, measures every system and baseline on it,
    and computes intervals, comparisons and the decision. In several processes each calls the same
    methods in the same order.

    Args:
        stage: Config of the evaluation.
        data: Data folder with held-out events.

    Attributes:
        stage: Config of the evaluation.
        data: Data folder with held-out events.
    """

    sliced: ClassVar[Collection[str]] = ()
    """Names of the metrics that slices have, beside those that the decision rests on."""

    def __init__(self, stage: EvaluateStage, data: Data) -> None:
        self.stage, self.data = stage, data

    @abc.abstractmethod
    def open_folder(self, folder: Path, name: str, mesh: DeviceMesh | None) -> SystemT:
        """Returns the system of a model folder.

        Args:
            folder: A model folder.
            name: Display name.
            mesh: Devices to split tables over; None: all are in this process.
        """

    @abc.abstractmethod
    def open_bundle(
        self, bundle: Path, manifest: Mapping[str, Any], name: str, mesh: DeviceMesh | None
    ) -> SystemT:
        """Returns the system of a bundle, whose files match its manifest."""

    @abc.abstractmethod
    def open_model(self, model: Any, name: str) -> SystemT:
        """Returns the system of a `TrainedModel`, or of a built model."""

    @abc.abstractmethod
    def case(self, systems: Mapping[str, SystemT]) -> CaseT:
        """Returns the case of the systems: the model and, if there is one, the last blessed."""

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
        """Returns cases that only the model and some baselines are measured on, by name."""
        return {}

    def slices(self, case: CaseT) -> Sequence[Slice]:
        """Returns the slices that have figures, none of them empty."""
        return ()

    def slice_values(
        self, part: Slice, case: CaseT, measured: MeasuredT, keys: Collection[str]
    ) -> Values:
        """Returns the values in a slice, NaN for queries that are not in it.

        By default this masks the values of queries; statistics of users are left out.

        Args:
            part: The slice, with a mask.
            case: The case.
            measured: The values of a system on the whole case.
            keys: Keys of the metrics that are needed.
        """
        values = {key: x for key in keys if isinstance(x := measured.values[key], np.ndarray)}
        return {key: np.where(part.which, x, np.nan) for key, x in values.items()}

    def more(
        self,
        case: CaseT,
        systems: Mapping[str, SystemT],
        measured: Mapping[str, MeasuredT],
    ) -> dict[str, Any]:
        """Returns more fields of `evaluation.json`, such as example users."""
        return {}
