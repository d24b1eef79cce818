"""The systems that an evaluation compares: models that predict the labels of rows of the data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from recsys.data import event_features
from recsys.data.dataset import Data, feature_tables
from recsys.data.event_features import LearnedFeature, load_event_features
from recsys.data.vocabulary import Vocabulary
from recsys.distributed.coordination import from_primary, is_primary, meet
from recsys.errors import RecsysError
from recsys.models.calibration import Calibration, Temperature
from recsys.models.config import QueryConfig
from recsys.models.inference import ScoreInference
from recsys.models.inputs import EventInput, ModelInputs, event_inputs
from recsys.models.ranking_model import RETRIEVER
from recsys.ragged import slices
from recsys.savedmodel.signatures import RANK_ENCODED, encoded_name
from recsys.tasks.bundle_process import BundleProcess
from recsys.tasks.judging_side import Progress
from recsys.tasks.model_folder import load_model
from recsys.tasks.own_rows import check_shared, check_split, own_rows, own_tokens
from recsys.tasks.ranking.calibration_file import load_calibration
from recsys.tasks.ranking.judging.baselines import Predictions
from recsys.tasks.ranking.judging.labelled_rows import LabelledRows, PairColumns
from recsys.tasks.ranking.probe import check_probe
from recsys.tasks.ranking.rows import Read, is_row_feature, model_inputs, of_list

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh

    from recsys.models.ranking_model import RankingModel

_BLOCK = 4096
ReadRows = Callable[[np.ndarray], Read]
"""Reads rows at indices `[b]`, in the rows of a system, as `Rows.read` returns them."""


@dataclasses.dataclass(frozen=True)
class BundleInputs:
    """The vocabularies and features of events in a bundle."""

    users: Vocabulary
    items: Vocabulary
    event_features: tuple[LearnedFeature, ...]

    @classmethod
    def of(cls, bundle: Path) -> Self:
        """Reads a bundle."""
        names = ("users", "items")
        users, items = (Vocabulary.load(bundle / "vocabulary" / f"{n}.parquet") for n in names)
        return cls(users, items, load_event_features(bundle / event_features.FOLDER))

    def event_inputs(self, model: QueryConfig) -> tuple[EventInput, ...]:
        """Returns the inputs of its queries that come from events."""
        return event_inputs(model, feature_tables((), (), self.event_features))


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """A model that predicts labels, in its own rows.

    Attributes:
        inputs: Its vocabularies and features.
        config: Its config, a `RankingConfig` or `PairColumns`.
        labels: Names of its labels, the first one first.
        blocks: Yields the predictions `[b, labels]` of consecutive rows, given a function that
            reads rows at indices, and their number.
    """

    inputs: ModelInputs | BundleInputs
    config: Any
    labels: tuple[str, ...]
    blocks: Callable[[ReadRows, int], Iterator[np.ndarray]]


def open_folder(folder: Path, mesh: DeviceMesh | None = None) -> Predictor:
    """Reads a model folder.

    Args:
        folder: A model folder.
        mesh: Devices to split tables over; None: this process holds them whole.

    Raises:
        RecsysError: It is damaged (R310, R396), or computes other numbers than in training (R311).
    """
    trained = load_model(folder, mesh=mesh)
    meet()  # The processes may read at different speeds.
    inference = ScoreInference(trained.model)
    check_probe(folder, inference, trained.inputs)
    return of_model(inference, trained.inputs, load_calibration(folder, trained.model.label_names))


def open_object(model: Any, data: Data) -> Predictor:
    """Returns the predictor of a `TrainedModel`, or of a built model of `data`."""
    if not hasattr(model, "joint_scores"):
        names, folder = model.model.label_names, model.folder
        calibration = {} if folder is None else load_calibration(folder, names)
        return of_model(ScoreInference(model.model), model.inputs, calibration)
    # A training result knows the trained rows: validation may hold back all rows of a user.
    trained = getattr(model, "training_result", None)
    inputs = ModelInputs.of_data(data) if trained is None else trained.inputs
    return of_model(ScoreInference(model), inputs, model.calibration)


def open_bundle(bundle: Path, manifest: Mapping[str, Any]) -> Predictor:
    """Reads a bundle.

    Args:
        bundle: A bundle whose files match its manifest.
        manifest: Its manifest.

    Raises:
        RecsysError: It lacks something that the evaluation needs (R409).
    """
    try:
        inputs = BundleInputs.of(bundle)
        length = int(manifest["config"]["model"]["history"])
        labels = tuple(manifest["labels"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecsysError(
            "R409",
            "A bundle that is measured must hold vocabulary/ and, in its manifest, the labels and"
            f" the model's config; {str(bundle)!r} doesn't.",
            "Export the model again: recsys export.",
            f"{type(error).__name__}: {error}",
        ) from None
    config = PairColumns(history=length, reads_attributes=length > 0)
    # TensorFlow needs as much memory as a server of the bundle, so only on the first host.
    process = BundleProcess(bundle) if is_primary() else None

    def predict(rows: Read) -> np.ndarray:
        if process is None:
            return np.zeros(0)
        if RANK_ENCODED not in process.signatures:
            raise RecsysError(
                "R409",
                f"A bundle that is measured must have the signature {RANK_ENCODED}.",
                "Export the model again: recsys export.",
                f"{str(bundle)!r} with {', '.join(process.signatures)}",
            )
        inputs = {encoded_name(n): x for n, x in {RETRIEVER: of_list(rows), **rows}.items()}
        predicted = process.ask(RANK_ENCODED, inputs)
        return np.stack([predicted[name] for name in labels], axis=1)

    def blocks(read: ReadRows, n: int) -> Iterator[np.ndarray]:
        for block in slices(n, _BLOCK):
            rows = read(np.arange(block.start, block.stop))
            yield from_primary(functools.partial(predict, rows)).astype(np.float64)

    return Predictor(inputs, config, labels, blocks)


def of_model(
    inference: ScoreInference, inputs: ModelInputs, calibration: Mapping[str, Calibration]
) -> Predictor:
    """Returns the predictor of a model in memory.

    Args:
        inference: Inference with the model.
        inputs: Vocabularies and features of users, items and events.
        calibration: Calibration of labels; the others have the model's own probabilities.
    """
    model = inference.model
    config = model.spec.config

    def blocks(read: ReadRows, n: int) -> Iterator[np.ndarray]:
        def of_rows(which: np.ndarray) -> dict[str, Any]:
            return model_inputs(read(which), inputs, config)

        for scores in inference.blocks(of_rows, n):
            yield calibrated(model, scores, calibration)

    return Predictor(inputs, config, model.label_names, blocks)


def calibrated(
    model: RankingModel, scores: np.ndarray, calibration: Mapping[str, Calibration]
) -> np.ndarray:
    """Returns probabilities and amounts `[…, labels]` float64 of the joint scores of a model."""
    predicted = scores.astype(np.float64)
    for number, name in enumerate(model.label_names):
        if not model.spec.labels[name].is_amount:
            own = calibration.get(name, Temperature())
            predicted[..., number] = own.apply(scores[..., number])
    return predicted


class System:
    """A model to measure, on rows of a data folder.

    Users, items and the tokens of events are translated, as in `recsys.tasks.own_rows`.

    Args:
        name: Display name.
        predictor: The model.
        data: The data folder.

    Raises:
        RecsysError: It shares no item with the data (R403), or was trained on events that
            are held out in the data (R411).
    """

    def __init__(self, name: str, predictor: Predictor, data: Data) -> None:
        self.name, self._data, self._predictor = name, data, predictor
        self.labels = predictor.labels
        """Names of the labels that it predicts, the first one first."""
        its, ours = predictor.inputs.items, data.items
        check_split(name, its, data)
        self._item_rows = own_rows(ours, its)
        known = its.is_current()
        known = known if self._item_rows is None else known[self._item_rows]
        check_shared(name, its, ours, known & ours.is_current())
        self._has_users = data.users.fingerprint() == predictor.inputs.users.fingerprint()
        self._tokens = own_tokens(data.event_features, predictor.inputs.event_features)

    def predict(self, rows: LabelledRows, progress: Progress | None = None) -> Predictions:
        """Returns the predictions for rows of the data, by label.

        Args:
            rows: The rows.
            progress: Called with the number of finished rows and the total.
        """
        part = dataclasses.replace(rows.rows, config=self._predictor.config)
        is_drawn = bool(rows.is_drawn.any())

        def read(which: np.ndarray) -> Read:
            found = part.read(rows.numbers[which])
            if is_drawn:  # All rows then have the row features of drawn items.
                found = part.of_items(found, rows.item_row[which])
            of_users = self._data.store.eval_users.ids
            return self.own(found, lambda: of_users.take(rows.user[which]))

        predicted, done = np.empty((len(rows), len(self.labels))), 0
        for block in self._predictor.blocks(read, len(rows)):
            predicted[done : done + len(block)] = block
            done += len(block)
            if progress is not None:
                progress(done, len(rows))
        found = {name: predicted[:, number] for number, name in enumerate(self.labels)}
        return found | {
            name: rows.among_drawn(found[name]) for name in rows.drawn_labels if name in found
        }

    def own(self, read: Read, user_ids: Callable[[], pa.Array]) -> Read:
        """Returns rows that were read from the data in the system's own rows.

        Args:
            read: The rows `[n]`, each with an item, or with several, `[n, items]`.
            user_ids: Returns the ids of their users `[n]`, text.
        """
        inputs = self._predictor.inputs
        own = {
            name: self._tokens[name][x] if name in self._tokens else x for name, x in read.items()
        }
        if self._item_rows is not None:
            own |= {name: self._item_rows[read[name]] for name in ("item_row", "history")}
        if not self._has_users:
            own["user_row"] = inputs.users.rows(user_ids())
        for event in inputs.event_inputs(self._predictor.config):
            if event.name not in own:
                own[event.name] = event.missing_for(read["history"])
        for one in filter(is_row_feature, inputs.event_features):
            if one.name not in own:
                shape = (*read["item_row"].shape, one.feature.floats or one.feature.width)
                own[one.name] = np.zeros(shape, "float32" if one.feature.floats else "int32")
        return own
