"""Configs of the data: files, columns, features, vocabularies, and the gate."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from recsys import registry
from recsys.data.feature_options import check_crosses
from recsys.data.interactions_config import InteractionColumns as InteractionColumns
from recsys.data.interactions_config import InteractionsConfig as InteractionsConfig
from recsys.data.interactions_config import Order as Order
from recsys.data.interactions_config import TimestampUnit as TimestampUnit
from recsys.data.interactions_config import read_event_feature as read_event_feature
from recsys.data.interactions_config import write_event_feature as write_event_feature
from recsys.data.source_config import MOST_SKIPPED as MOST_SKIPPED
from recsys.data.source_config import CsvFormat as CsvFormat
from recsys.data.source_config import ElementFields as ElementFields
from recsys.data.source_config import EventSource as EventSource
from recsys.data.source_config import Files as Files
from recsys.data.source_config import ListOfEvents as ListOfEvents
from recsys.data.source_config import SourceConfig as SourceConfig
from recsys.strict import Share, Strict

Split = Literal["time", "last_out", "random", "given"]
"""How positives are split into training and held-out ones."""
_SPAN = re.compile(r"\{(SPAN|VERSION|YYYY|MM|DD)(:\d+)?\}")


# Names of the model's other tables and inputs, which features can't have.
RESERVED_FEATURE_NAMES = frozenset(
    ("users", "items", "item_bias", "item_neighbours", "user_row", "history", "history_rows",
     "history_item", "history_place", "history_age",
     "asked_age", "asked_at", "segment", "at", "id_row", "item_row", "log_q", "weight", "known")
)  # fmt: skip


_FEATURE = registry.Choice("feature", key="kind")
write_feature = _FEATURE.write
"""Returns the options of a feature as a JSON-serializable dict."""
read_feature = _FEATURE.read
"""Returns the feature (`recsys.data.features.Feature`) that a dict of options describes."""


class EntitySourceConfig(SourceConfig):
    """Files of items or users and their format."""

    latest: str | None = None
    """Column of a number, or of a time in ISO 8601, that says which of several rows with one id is
    used: the one with the highest value; `null`: the first row."""


class ItemColumns(Strict):
    """Column names in the raw files."""

    item: str
    """Column of the item id."""
    title: str | None = None
    """Column of the display name; `null`: the id is shown."""


class ItemsConfig(EntitySourceConfig):
    """The catalogue."""

    columns: ItemColumns
    """Column names of the catalogue."""
    features: tuple[Annotated[Any, _FEATURE], ...] = ()
    """Features of the item tower; each has `name`, `column`, `kind` and the options of its kind:
    [features.md](features.md#kinds)."""


class UserColumns(Strict):
    """Column names in the raw files."""

    user: str
    """Column of the user id."""


class UsersConfig(EntitySourceConfig):
    """The users and their features."""

    columns: UserColumns
    """Column names of the users."""
    features: Annotated[tuple[Annotated[Any, _FEATURE], ...], Field(min_length=1)]
    """Features of the user tower, in the form of `items.features`."""


class VocabularyConfig(Strict):
    """Rules that select the ids with a row of their own."""

    min_count: PositiveInt = 1
    """Lowest number of training positives of an id with a row of its own."""
    hash_buckets: NonNegativeInt = 0
    """Number of rows that all other ids share by hash; 0: they read row 0. Can't be changed after
    the first run."""
    evict_after_days: PositiveInt | None = None
    """Days without a training event after which the row of an id can be given to a new id; `null`:
    never [days]."""


class VocabulariesConfig(Strict):
    """Vocabularies of users and items, which grow from run to run."""

    users: VocabularyConfig = VocabularyConfig()
    """Vocabulary of users."""
    items: VocabularyConfig = VocabularyConfig()
    """Vocabulary of items."""


class GateConfig(Strict):
    """Thresholds above which rejected or drifted data stop the run."""

    max_rejected_share: Share = 0.01
    """Highest share of rows in the dead letters [0..1]."""
    max_drift: Share | None = 0.3
    """Highest distance of a column from the last accepted data; `null`: any [0..1]."""
    max_skew: Share | None = 0.3
    """Highest distance of a column from the training data of the last blessed model; `null`: any
    [0..1]."""
    schema_dir: str | None = None
    """Folder of committed TFDV schemas `interactions.pbtxt`, `items.pbtxt` and `users.pbtxt`;
    `null`: inferred from the data of the run."""


class DataConfig(Strict):
    """The data, from raw files to the interaction store."""

    interactions: InteractionsConfig
    """The interactions of users with items."""
    items: ItemsConfig | None = None
    """The catalogue; `null`: the items of the interactions, without features."""
    users: UsersConfig | None = None
    """The users and their features; `null`: only their ids and histories."""
    vocabulary: VocabulariesConfig = VocabulariesConfig()
    """Vocabularies of users and items."""
    split: Split = "time"
    """Which positives are held out. `time`: the newest, from a UTC midnight on; `last_out`: the
    last one of each user; `random`: a random sample; `given`: those marked by `columns.part` or
    `interactions.eval_files`. docs/evaluation.md explains the figures of each."""
    eval_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of the positives that `time` and `random` hold out [0..1]."""
    gate: GateConfig = GateConfig()
    """Thresholds above which rejected or drifted data stop the run."""
    forget: str | None = None
    """File of salted hashes of the users whose rows are left out, which `recsys forget` writes;
    `null`: none."""

    @property
    def sides(self) -> dict[str, ItemsConfig | UsersConfig]:
        """The configs of `items` and `users`, without those that are `null`."""
        sides = {"items": self.items, "users": self.users}
        return {what: side for what, side in sides.items() if side is not None}

    @model_validator(mode="after")
    def _split_can_be_made(self) -> Self:
        source, split = self.interactions, self.split
        names_parts = source.columns.part is not None or bool(source.eval_files)
        listed = (source.files, source.eval_files, source.valid_files)
        files = [file for part in listed for file in ((part,) if isinstance(part, str) else part)]
        spans = [file for file in files if _SPAN.search(file)]
        if split == "time" and source.ordered_by != "time":
            raise ValueError(
                "split: time needs interactions.columns.timestamp: set it, or set data.split to"
                " last_out, random or given, which do not need it"
            )
        if split == "last_out" and source.ordered_by == "none":
            raise ValueError(
                "split: last_out needs an order: set interactions.columns.timestamp, or set"
                " interactions.order to file if the rows are in chronological order; without an"
                " order, set data.split to random"
            )
        if split == "given" and not names_parts:
            raise ValueError(
                "split: given needs interactions.columns.part or interactions.eval_files"
            )
        if split != "given" and names_parts:
            raise ValueError(
                "interactions.columns.part and interactions.eval_files need split: given; remove"
                f" them to split by {split}"
            )
        if split != "time" and (spans or getattr(source.format, "has_spans", False)):
            raise ValueError(
                f"split: {split} can't be used with spans {spans[:1] or 'of a topic'}, split"
                " by time: set data.split to time, or name the files without {SPAN} or a date"
            )
        for name in ("users", "items"):
            if getattr(self.vocabulary, name).evict_after_days and source.ordered_by != "time":
                raise ValueError(
                    f"vocabulary.{name}.evict_after_days needs interactions.columns.timestamp:"
                    " without times the age of an id is unknown; remove it"
                )
        return self

    @model_validator(mode="after")
    def _feature_names_are_free(self) -> Self:
        sides = (*self.sides.values(), self.interactions)
        names = [feature.name for side in sides for feature in side.features]
        taken = {name for name in names if names.count(name) > 1} | RESERVED_FEATURE_NAMES
        taken_here = sorted(taken.intersection(names))
        if taken_here:
            raise ValueError(f"feature names must be unique and not reserved: {taken_here}")
        for what, side in {"interactions": self.interactions, **self.sides}.items():
            check_crosses(side.features, f"{what}.features")
        return self

    @model_validator(mode="after")
    def _statistics_are_of_tokens(self) -> Self:
        of_items = self.items.features if self.items else ()
        with_tokens = [feature.name for feature in of_items if not feature.floats]
        for feature in self.interactions.features:
            name = getattr(feature, "item_feature", None)
            if name is not None and name not in with_tokens:
                raise ValueError(
                    f"feature {feature.name} must be by a feature of items.features that has tokens"
                    f" ({', '.join(with_tokens) or 'there are none'}); received {name!r}"
                )
        return self


class ShuffleConfig(Strict):
    """Order of the training positives within an epoch."""

    kind: Literal["global", "shards"] = "global"
    """`global`: a uniform shuffle of all positives; `shards`: the shards of the store in random
    order, shuffled within a buffer, so that a store larger than memory is read sequentially."""
    buffer: PositiveInt = 1_000_000
    """Number of consecutive events of a shard that `shards` shuffles together; they are all events
    of some users."""


MONITORED = ("recall", "ndcg", "mrr", "roc_auc", "gauc", "log_loss", "squared_error")
"""Metrics that a validation can monitor."""
_MONITORED = rf"^((recall|ndcg)@[1-9][0-9]*|{'|'.join(MONITORED[2:])})$"


class ValidationConfig(Strict):
    """Validation during training, on training positives that are held back."""

    like: Literal["newest", "last", "random", "given"] | None = None
    """How validation positives are drawn, which should match the test part. `newest`: the newest of
    all; `last`: the last of each user; `random`: a random share of each user's; `given`: marked by
    `interactions.valid_parts` or `valid_files`. `null`: follows `data.split`."""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of the training positives that `newest` and `random` hold back [0..1]."""
    last: PositiveInt = 1
    """Number of events of each user that `last` holds back; the first event is always kept."""
    metric: Annotated[str, Field(pattern=_MONITORED)] = "recall@10"
    """Metric to monitor: `recall@k`, `ndcg@k` or `mrr`; for ranking `log_loss`, its default,
    `roc_auc`, `gauc` or, if the first label is an amount, `squared_error`."""
    every_epochs: PositiveInt = 1
    """Number of epochs between two evaluations."""
    patience: PositiveInt | None = 3
    """Number of evaluations without improvement after which training stops; `null`: never. The
    best model is kept in any case."""
    refit: bool = False
    """Whether the model is then trained anew on all rows, those held back among them, for the best
    number of epochs. The default of ranking is true."""
    max_queries: PositiveInt = 5_000
    """Highest number of queries per evaluation; for ranking, of rows, by default 200,000."""

    @property
    def sign(self) -> int:
        """1 if higher values of the metric are better, else -1."""
        return -1 if self.metric in ("log_loss", "squared_error") else 1

    @model_validator(mode="after")
    def _draw_is_whole(self) -> Self:
        if self.last > 1 and self.like not in (None, "last"):
            raise ValueError(f"last can only be set with like: last; received like: {self.like}")
        return self
