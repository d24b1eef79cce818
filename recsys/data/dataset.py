"""An open data folder, for training, evaluation and export.

    vocabulary/      rows of users and items          `recsys.data.vocabulary`
    store/           events to train on and held out  `recsys.data.store`
    catalogue/       titles and features of items     `recsys.data.catalogue`
    user_features/   features of users, if there are any
    event_features/  what features of events learned, if there are any
    statistics/      statistics of all events, if there are any  `recsys.data.statistics`
    graphs/          transform graphs of the features, for export
    inputs.json      size and CRC-32 of each file, except for store and graphs
    ingest.json      statistics of the ingest

The pipeline's InteractionEncoder and `recsys.data.ingest.ingest` write the same folder, the first
without `graphs/` and `ingest.json`. A model folder has `inputs.json`, too, and `candidates.json`
for its `candidates.npy`; its weights have their own checksums (see `recsys.tasks.model_folder`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from recsys.data.candidates import Candidates
from recsys.data.catalogue import Catalogue, FeatureBags, open_user_features
from recsys.data.event_features import FOLDER as EVENT_FEATURES
from recsys.data.event_features import LearnedFeature, labels_of, load_event_features
from recsys.data.event_log import EventLog
from recsys.data.label_config import LabelConfig
from recsys.data.split import SplitRule
from recsys.data.statistics import FOLDER as STATISTICS
from recsys.data.store import InteractionStore, verify_store
from recsys.data.vocabulary import Vocabulary, reading_data
from recsys.errors import RecsysError
from recsys.formats import counted, html_facts, moment
from recsys.system import manifest
from recsys.system.files import read_json

PARTS = ("vocabulary", "catalogue", "user_features", EVENT_FEATURES, STATISTICS)
"""Folders of the vocabularies and features of users, items and events."""

CANDIDATES = "candidates.npy"
"""Item embeddings of a model folder `[item rows, dim]` float32."""

_MANIFEST, _OF_CANDIDATES = "inputs.json", "candidates.json"


def seal_inputs(folder: Path) -> None:
    """Writes the checksums of a folder whose vocabularies and features are complete.

    Raises:
        OSError: The disk is full.
    """
    parts = [part for part in PARTS if (folder / part).exists()]
    names = [f"{part}/{name}" for part in parts for name in manifest.file_names(folder / part)]
    manifest.write_manifest(folder / _MANIFEST, {}, manifest.checksums(folder, names, "crc32"))


def verify_inputs(folder: Path, share: int = 0, shares: int = 1) -> None:
    """Verifies the checksums of vocabularies and features, or of a share of the files.

    A folder without checksums, which an earlier version wrote, is not verified.

    Args:
        folder: The data folder, or the model folder.
        share: Index of the share of the files to verify.
        shares: Number of shares, of about the same size.
    """
    _verify(folder, _MANIFEST, share, shares)


def seal_candidates(folder: Path, described: dict[str, Any]) -> None:
    """Writes the checksum of a model folder's item embeddings.

    Args:
        folder: The model folder.
        described: Size and CRC-32 of the file.

    Raises:
        OSError: The disk is full.
    """
    manifest.write_manifest(folder / _OF_CANDIDATES, {}, {CANDIDATES: described})


def verify_candidates(folder: Path) -> None:
    """Verifies the checksum of a model folder's item embeddings.

    A folder without a checksum, which an earlier version wrote, is not verified.

    Raises:
        RecsysError: The file is damaged (R221).
    """
    _verify(folder, _OF_CANDIDATES)


def _verify(folder: Path, name: str, share: int = 0, shares: int = 1) -> None:
    if not (folder / name).exists():
        return
    try:
        files = manifest.read_manifest(folder / name)["files"]
        manifest.verify_files(folder, manifest.share_of(files, share, shares))
    except manifest.ManifestError as error:
        raise RecsysError(
            "R221",
            f"{str(folder / error.name)!r} must be as it was written.",
            f"Delete {str(folder)!r} and run again: the raw data are untouched.",
            error.reason,
        ) from None


FACTS = "ingest.json"
"""Statistics of the ingest, in a folder that `ingest` wrote."""

GRAPHS = "graphs"
"""Folder of the transform graphs of `items` and `users`, in a folder that `ingest` wrote."""

Split = Literal["train", "eval"]


@dataclasses.dataclass(frozen=True)
class FeatureTable:
    """The embedding table of one feature.

    Attributes:
        name: Name of the feature, and of the model's input.
        side: What has the feature; a row is a pair of a query and an item.
        rows: Rows of the table, row 0 (padding) included; 0 for a feature of numbers.
        width: Number of token rows per item, user or event, padded with 0.
        floats: Number of float32 values; 0 for a feature of tokens.
        is_context: Whether a query has the feature of an event.
        is_attribute: Whether the events of a history have the feature of an event.
    """

    name: str
    side: Literal["item", "user", "event", "row"]
    rows: int
    width: int
    floats: int = 0
    is_context: bool = False
    is_attribute: bool = False

    @property
    def needs_layers(self) -> bool:
        """Whether only the layers of a model read the feature: not so if it is an attribute."""
        return self.side in ("item", "user") or (self.side == "event" and self.is_context)

    @property
    def entry(self) -> tuple[tuple[int], str]:
        """Shape and dtype of the feature of one item, user or event."""
        return ((self.floats,), "float32") if self.floats else ((self.width,), "int32")


def feature_tables(
    items: Iterable[FeatureBags],
    users: Iterable[FeatureBags],
    events: Iterable[LearnedFeature] = (),
) -> tuple[FeatureTable, ...]:
    """Returns the tables of the items' features, then of the users', then of the events'."""
    sides: dict[Literal["item", "user"], Iterable[FeatureBags]] = {"item": items, "user": users}
    of_entities = (
        FeatureTable(feature.name, side, feature.rows, feature.width, feature.floats)
        for side, features in sides.items()
        for feature in features
    )
    of_events = (
        FeatureTable(
            name=one.name,
            side=one.feature.side,
            rows=one.rows,
            width=one.feature.width,
            floats=one.feature.floats,
            is_context=one.feature.is_context,
            is_attribute=one.feature.is_attribute,
        )
        for one in events
    )
    return (*of_entities, *of_events)


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The sizes and properties of the data from which a model is built.

    Attributes:
        user_rows: Rows of the users' table, shared and free rows included.
        item_rows: Rows of the items' table.
        features: Features of the items, then of the users, then of the events.
        has_weight: Whether events have weights.
        split: How the held-out events were chosen, and the order of events.
        labels: Labels of events by name, each after its `given`.
    """

    user_rows: int
    item_rows: int
    features: tuple[FeatureTable, ...]
    has_weight: bool
    split: SplitRule
    labels: Mapping[str, LabelConfig] = dataclasses.field(default_factory=dict)


class Data:
    """A data folder, read lazily: columns are memory-mapped, vocabularies read when used.

    Args:
        folder: The folder.
        verify: Whether to verify the checksums of all files.
        candidates: Folder of items drawn for rows, see `recsys.data.candidates`; None: none.

    Raises:
        RecsysError: The folder holds no data, or they are damaged.
    """

    def __init__(
        self, folder: str | Path, verify: bool = False, candidates: Path | None = None
    ) -> None:
        self.folder = Path(folder)
        self._is_verified = False
        if verify:
            self.verify()
        self.store = InteractionStore.open(self.folder / "store")
        """The events."""
        if candidates is not None:
            self.store.candidates = Candidates.open(candidates)

    def verify(self, share: int = 0, shares: int = 1) -> None:
        """Verifies the checksums of all files, unless this was done before.

        Args:
            share: Index of the share of the files to verify.
            shares: Number of shares that the files are divided into.

        Raises:
            RecsysError: A file is damaged (R221), or there is no store (R220).
        """
        if not self._is_verified:
            verify_store(self.folder / "store", share, shares)
            verify_inputs(self.folder, share, shares)
            self._is_verified = True

    @property
    def train(self) -> EventLog:
        """The events to train on, sorted by user and time."""
        return self.store.train

    @property
    def eval(self) -> EventLog:
        """The held-out events, sorted by user and time."""
        return self.store.eval

    @functools.cached_property
    def users(self) -> Vocabulary:
        """The rows of the users."""
        return Vocabulary.load(self.folder / "vocabulary" / "users.parquet")

    @functools.cached_property
    def items(self) -> Vocabulary:
        """The rows of the items."""
        return Vocabulary.load(self.folder / "vocabulary" / "items.parquet")

    @functools.cached_property
    def catalogue(self) -> Catalogue:
        """Ids, titles and features of the items, by row."""
        return Catalogue.open(self.folder / "catalogue")

    @functools.cached_property
    def user_features(self) -> tuple[FeatureBags, ...]:
        """Features of the users, by row."""
        return open_user_features(self.folder / "user_features", self.users.n_rows)

    @functools.cached_property
    def event_features(self) -> tuple[LearnedFeature, ...]:
        """Features of the events, with what they learned."""
        return load_event_features(self.folder / EVENT_FEATURES)

    @functools.cached_property
    def labels(self) -> dict[str, LabelConfig]:
        """Labels of the events by name, each after its `given`."""
        return labels_of(self.folder / EVENT_FEATURES)

    @property
    def titles(self) -> Sequence[str]:
        """Title of each item row; the id if it has no title, empty if it is no item."""
        return self.catalogue.titles

    @functools.cached_property
    def spec(self) -> DataSpec:
        """Sizes and properties from which a model is built."""
        return DataSpec(
            user_rows=self.users.n_rows,
            item_rows=self.items.n_rows,
            features=feature_tables(
                self.catalogue.features, self.user_features, self.event_features
            ),
            has_weight=self.train.weight is not None,
            split=self.store.split,
            labels=self.labels,
        )

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Statistics of the ingest: rows read, rejected and split; empty for a pipeline's folder.

        Raises:
            RecsysError: The file is damaged.
        """
        file = self.folder / FACTS
        if not file.exists():
            return {}
        with reading_data(file, "JSON", "R220", "Run ingest again."):
            return read_json(file)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of users, items, events, and of rows read, good, rejected and duplicate."""
        read = self.facts.get("interactions", {})
        names = ("read", "good", "rejected", "duplicates")
        return {
            "users": int(self.users.has_id().sum()),
            "items": int(self.items.has_id().sum()),
            "train_events": len(self.train),
            "eval_events": len(self.eval),
            **{name: read[name] for name in names if name in read},
        }

    def events(self, split: Split) -> pa.Table:
        """Returns the events of a split as a table, users in the order of the store.

        Args:
            split: `train` or `eval`.

        Returns:
            Columns `user_id`, `item_id` (null for items without their own row),
            `user_row`, `item_row`, `timestamp` [seconds since 1970, UTC; for events
            without times, the number that orders them], and, if the data have them, `weight`
            and the features: names of tokens (null if unknown) if they have some, else token rows
            or numbers.
        """
        log = getattr(self.store, split)
        users = getattr(self.store, f"{split}_users")
        owner = np.repeat(np.arange(len(users.rows)), np.diff(log.offsets))
        item_row = np.asarray(log.item_row)
        columns = {
            "user_id": users.ids.take(pa.array(owner)),
            "item_id": self.items.ids_of_rows.take(pa.array(item_row)),
            "user_row": np.asarray(log.user_row),
            "item_row": item_row,
            "timestamp": np.asarray(log.timestamp),
        }
        if log.weight is not None:
            columns["weight"] = np.asarray(log.weight)
        of_events = (one for one in self.event_features if one.feature.side == "event")
        for one in of_events:
            columns[one.name] = _shown(one, np.asarray(log.features[one.name]))
        return pa.table(columns)

    def frame(self, split: Split) -> Any:
        """Returns the events of a split as a pandas DataFrame; requires pandas.

        If events are ordered by time, the column `time` has the timestamps as datetimes.
        """
        frame = self.events(split).to_pandas()
        if self.store.split.order == "time":
            frame["time"] = frame["timestamp"].to_numpy().astype("datetime64[s]")
        return frame

    def _lines(self) -> dict[str, str]:
        counts, spec = self.counts, self.spec
        at = f" at {moment(self.store.cut)}" if spec.split.split == "time" else ""
        lines = {
            "folder": str(self.folder),
            "users": f"{counts['users']:,} ({spec.user_rows:,} rows)",
            "items": f"{counts['items']:,} ({spec.item_rows:,} rows)",
            "events": f"{counts['train_events']:,} to train on, {counts['eval_events']:,} held out",
            "split": f"by {spec.split.split}{at}",
            "features": ", ".join(f"{f.name} ({f.side}, {_size(f)})" for f in spec.features)
            or "none",
        }
        if "read" in counts:
            lines["raw rows"] = (
                f"{counts['read']:,} read = {counts['good']:,} good + {counts['rejected']:,}"
                f" rejected + {counts['duplicates']:,} duplicates"
            )
        return lines

    def __repr__(self) -> str:
        return "\n".join(["Data", *(f"  {name}: {text}" for name, text in self._lines().items())])

    def _repr_html_(self) -> str:
        """Returns an HTML table, for notebooks."""
        return html_facts(self._lines())


def _shown(feature: LearnedFeature, encoded: np.ndarray) -> pa.Array:
    """Returns a feature as it is shown in a table: `[n]`, or lists if it is wider."""
    names = feature.feature.token_names(feature.learned)
    if names is not None and encoded.shape[1] == 1:
        return pa.array([None, *names[1:]], pa.string()).take(pa.array(encoded[:, 0]))
    return pa.array(encoded[:, 0] if encoded.shape[1] == 1 else list(encoded))


def open_data(folder: str | Path, verify: bool = False) -> Data:
    """Opens a data folder that `ingest` or the pipeline wrote.

    Args:
        folder: The folder.
        verify: Whether to verify the checksums of all files.

    Raises:
        RecsysError: The folder holds no data, or they are damaged.
    """
    return Data(folder, verify)


def _size(feature: FeatureTable) -> str:
    if feature.floats:
        return counted(feature.floats, "number", "numbers")
    return counted(feature.rows, "row", "rows")
