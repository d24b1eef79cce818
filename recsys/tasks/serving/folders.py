"""What an export reads of a data folder, and copies of a model folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from recsys.data import event_features
from recsys.data.catalogue import Catalogue, write_catalogue
from recsys.data.dataset import GRAPHS
from recsys.data.event_features import load_event_features
from recsys.data.store import InteractionStore, ServingHistories, serving_histories
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.models.inputs import Side
from recsys.savedmodel.inputs import RawFeatures
from recsys.system.events import emit
from recsys.tasks.model_folder import TrainedModel
from recsys.tasks.serving.events import EventReads


def raw_features(
    folder: Path | None, data: Path, side: Side, saved: TrainedModel
) -> RawFeatures | None:
    """Returns the transform from raw columns of items or users to token rows.

    Args:
        folder: Output of Transform; None: the one that `ingest` stored in `data`, if the
            model reads features of this side.
        data: The data folder.
        side: Side of the columns.
        saved: The model.
    """
    widths = {f.name: f.floats or f.width for f in saved.model.spec.of_side(side)}
    if folder is None and widths:
        folder = data / GRAPHS / f"{side}s"
        if not folder.is_dir():
            text = (
                f"the bundle takes no raw columns of {side}s, as {str(data)!r} has no transform"
                " graph of theirs; `transforms` of recsys.export names one"
            )
            emit("note", text=text)
            return None
    return None if folder is None else RawFeatures(folder, f"{side}_id", widths)


def checked_histories(data: Path, saved: TrainedModel, reads: EventReads) -> ServingHistories:
    """Returns the histories of `data`, after a check that its rows are the model's."""
    cure = "Export with the data folder that the model was trained on."
    for name, of_model in (("users", saved.users), ("items", saved.items)):
        of_data = Vocabulary.load(data / "vocabulary" / f"{name}.parquet")
        if of_model.fingerprint() != of_data.fingerprint():
            rule = f"The {name} of the model must match those of the data folder {str(data)!r}."
            received = {"model": of_model.n_rows, "data": of_data.n_rows}
            raise RecsysError("R524", rule, cure, received)
    of_events = {f.name: f for f in load_event_features(data / event_features.FOLDER)}
    other = [f.name for f in reads.attributes if not f.is_same(of_events.get(f.name))]
    if other:
        rule = f"Features of events must match those of the data folder {str(data)!r}."
        raise RecsysError("R524", rule, cure, other)
    names = [one.name for one in reads.attributes]
    store = InteractionStore.open(data / "store")
    return serving_histories(store, names, times=reads.needs_times)


def copy_catalogue(model: Path, bundle: Path, catalogue: Catalogue) -> None:
    """Writes vocabularies, features of events, titles and the catalogue into a bundle."""
    for part in ("vocabulary", event_features.FOLDER):
        if (model / part).exists():
            shutil.copytree(model / part, bundle / part)
    shutil.copyfile(model / "catalogue" / "titles.parquet", bundle / "titles.parquet")
    write_catalogue(bundle, catalogue)
