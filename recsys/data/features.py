"""The types of features: how raw columns become token rows of embedding tables, or numbers.

A feature type is a registered class. `kind: name` in the config selects it, and its fields are
its options:

    @recsys.register_feature("initial")
    class InitialFeature(Feature):
        letters: int = 26                               # an option of the config

        def table_rows(self, n_known: int = 0) -> int:
            return 1 + self.letters

        def tokens(self, values):
            import tensorflow as tf
            first = tf.strings.substr(values.flat_values, 0, 1)
            return values.with_flat_values(1 + tf.strings.to_hash_bucket_fast(first, self.letters))

A value goes through three steps. The ingest parses it as the type `value`; if that fails, the row
is a dead letter. `tokens` converts it to token rows in a TensorFlow graph, which may use the
full-pass analyzers of TensorFlow Transform. The pipeline's Transform and `recsys.stages.ingest`
run the same graph, and the exported model contains it, so raw values are treated the same in
training and in serving. The model gets a table with `table_rows` rows; an item or a user has at
most `width` of them.

A feature with `floats` has no table: `numbers` converts a value to that many numbers, which the
model reads as they are.
"""

from __future__ import annotations

import abc
import calendar
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PositiveInt, model_validator

from recsys import registry
from recsys.data.feature_options import CrossOptions, NumberOptions, VectorOptions
from recsys.strict import Name, Strict

if TYPE_CHECKING:
    import tensorflow as tf

Value = Literal["text", "list", "number", "date", "vector", "tokens"]
"""Type of a parsed value: text without surrounding whitespace, a list of texts, a finite float32, a
time int64 [seconds since 1970, UTC], a list of float32, or the tokens of other features."""

WORD_SEPARATOR = r"(?:[a-z]+://|www\.)\S+|[^\pL\pM\pN_]+"
"""Pattern (RE2) of the text between two words in lower-case text; URLs are not words."""


class Feature(Strict):
    """One feature of an item or a user: a bag of tokens with an embedding table, or numbers."""

    name: Name
    """Name of the feature and of its table."""
    column: str | None = None
    """Column of the raw file that the values come from; `null` for a kind that reads none."""

    value: ClassVar[Value] = "text"
    """Type that the ingest parses raw values as."""

    @model_validator(mode="after")
    def _has_its_column(self) -> Self:
        needs_column = self.value != "tokens"
        if needs_column != (self.column is not None):
            raise ValueError(f"{self.name} {'needs' if needs_column else 'has no'} column")
        return self

    @property
    def kind(self) -> str:
        """Registered name of the feature type."""
        return registry.name_of("feature", self)

    @property
    def detail(self) -> str:
        """Option for parsing: a list's separator, a date's format or a vector's length, or none."""
        return ""

    @property
    def has_vocabulary(self) -> bool:
        """Whether `tokens` learns a vocabulary of the feature's name from the data."""
        return False

    @property
    def width(self) -> int:
        """Maximum number of tokens per item or user."""
        return 1

    @property
    def floats(self) -> int:
        """Number of float32 values per item or user; 0: it has tokens."""
        return 0

    def table_rows(self, n_known: int = 0) -> int:
        """Returns the number of rows of its table, row 0 (padding) included; 0 without tokens.

        Args:
            n_known: Number of tokens in the vocabulary, for a feature with `has_vocabulary`.
        """
        del n_known
        return 0

    def tokens(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the token rows of values, from 1 on; called inside a TensorFlow graph.

        Args:
            values: Values `[batch, any]` of the type `value`. A missing one is absent, or the
                empty text, NaN, or the lowest int64.

        Returns:
            Token rows `[batch, any]` int64; those beyond `width` are cut off.
        """
        raise NotImplementedError

    def numbers(self, values: tf.RaggedTensor) -> tf.Tensor:
        """Returns numbers `[batch, floats]` float32, in place of `tokens` if there are `floats`.

        Args:
            values: See `tokens`. Numbers of a missing value should be 0.
        """
        raise NotImplementedError

    def codes(self, values: tf.RaggedTensor, rows: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns a number from 1 on for each token `[batch, any]` int64, which crosses hash.

        Args:
            values: See `tokens`.
            rows: The result of `tokens`.
        """
        del values
        return rows

    def token_names(self, known: Sequence[str] = ()) -> list[str] | None:
        """Returns the name of each token row `[rows]`, empty for row 0; None: they have no names.

        Items can be filtered by token names, and a warm start uses them to match rows.

        Args:
            known: Tokens of the vocabulary in order, for a feature with `has_vocabulary`.
        """
        del known
        return None

    def split(self, column: pa.Array) -> pa.Array:
        """Returns the tokens of a typed column, flattened, as text.

        `recsys plan` counts them, for a feature with `has_vocabulary`.
        """
        return column.filter(pc.fill_null(pc.not_equal(column, ""), False))


class TokenFeature(Feature, abc.ABC):
    """A feature with text tokens, which are looked up in a vocabulary or hashed."""

    min_count: PositiveInt = 1
    """Minimum number of occurrences of a known token."""
    hash_buckets: PositiveInt | None = None
    """Number of rows for hashed tokens; `null`: each known token has a row."""

    @abc.abstractmethod
    def texts(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the tokens of values `[batch, any]` as text."""

    @property
    def has_vocabulary(self) -> bool:
        """Whether each known token has its own row."""
        return self.hash_buckets is None

    def table_rows(self, n_known: int = 0) -> int:
        """Returns the number of rows: row 0, and one per known token or `hash_buckets`."""
        return 1 + (n_known if self.hash_buckets is None else self.hash_buckets)

    def tokens(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the rows of the tokens; unknown tokens are left out."""
        from recsys.data.ingest import feature_graph

        texts = self.texts(values)
        if self.hash_buckets is not None:
            return feature_graph.hashed_rows(texts, self.hash_buckets)
        return feature_graph.vocabulary_rows(texts, self.name, self.min_count)

    def codes(self, values: tf.RaggedTensor, rows: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns hashes of the texts: rows of a vocabulary differ from day to day."""
        from recsys.data.ingest import feature_graph

        return feature_graph.hashed_rows(self.texts(values), feature_graph.MOST_CODES)

    def token_names(self, known: Sequence[str] = ()) -> list[str] | None:
        """Returns the tokens; None if they are hashed, since a row stands for many."""
        return ["", *known] if self.has_vocabulary else None


class CategoryFeature(TokenFeature):
    """The whole value is one token."""

    def texts(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the first value of each row."""
        from recsys.data.ingest import feature_graph

        return feature_graph.stripped(values)[:, :1]


class BagFeature(TokenFeature):
    """The first few tokens of a value."""

    max_tokens: PositiveInt = 8
    """Maximum number of tokens per item or user; the first ones are kept."""

    @property
    def width(self) -> int:
        """Maximum number of tokens per item or user."""
        return self.max_tokens


class CategoriesFeature(BagFeature):
    """A list, or text that is split at a separator."""

    value: ClassVar[Value] = "list"
    separator: str = "|"
    """Separator of two categories."""

    @property
    def detail(self) -> str:
        """The separator."""
        return self.separator

    def texts(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the values of each row."""
        from recsys.data.ingest import feature_graph

        return feature_graph.stripped(values)

    def split(self, column: pa.Array) -> pa.Array:
        """Returns the elements of lists."""
        return column.flatten()


class WordsFeature(BagFeature):
    """The lower-cased words of a text, without web addresses."""

    def texts(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the words of the first value of each row."""
        from recsys.data.ingest import feature_graph

        return feature_graph.words(values, WORD_SEPARATOR)

    def split(self, column: pa.Array) -> pa.Array:
        """Returns the words of texts."""
        spaced = pc.replace_substring_regex(pc.utf8_lower(column), WORD_SEPARATOR, " ")
        return super().split(pc.split_pattern(spaced, " ").flatten())


class BucketFeature(Feature):
    """Quantile buckets of the values."""

    buckets: Annotated[int, Field(ge=2)] = 10
    """Number of buckets of the values."""

    def table_rows(self, n_known: int = 0) -> int:
        """Returns the number of rows: row 0 and the buckets."""
        del n_known
        return 1 + self.buckets

    def token_names(self, known: Sequence[str] = ()) -> list[str] | None:
        """Returns `bucket 1 of 10` …; a warm start matches buckets by these names."""
        del known
        return ["", *(f"bucket {n} of {self.buckets}" for n in range(1, self.buckets + 1))]


class NumberFeature(NumberOptions, BucketFeature):
    """A number: its quantile bucket, or as floats."""

    value: ClassVar[Value] = "number"

    def table_rows(self, n_known: int = 0) -> int:
        """Returns the number of rows: row 0 and the buckets; 0 without buckets."""
        return 0 if self.floats else super().table_rows(n_known)

    def tokens(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the bucket of the first finite number of each row."""
        from recsys.data.ingest import feature_graph

        return feature_graph.bucket_rows(
            feature_graph.finite(values)[:, :1], self.buckets, self.name
        )

    def numbers(self, values: tf.RaggedTensor) -> tf.Tensor:
        """Returns the first finite number of each row, encoded, and whether it is known."""
        from recsys.data.ingest import feature_graph

        return feature_graph.numbers(feature_graph.finite(values)[:, :1], self)

    def token_names(self, known: Sequence[str] = ()) -> list[str] | None:
        """Returns the names of the buckets; None without buckets."""
        return None if self.floats else super().token_names(known)


class VectorFeature(VectorOptions, Feature):
    """A list of numbers."""

    value: ClassVar[Value] = "vector"

    @property
    def detail(self) -> str:
        """The number of numbers."""
        return str(self.length)

    def numbers(self, values: tf.RaggedTensor) -> tf.Tensor:
        """Returns the numbers of each row, and whether they are known."""
        from recsys.data.ingest import feature_graph

        return feature_graph.vectors(values, self.length)


class CrossFeature(CrossOptions, Feature):
    """A pair of the tokens of other features, hashed to a row."""

    value: ClassVar[Value] = "tokens"

    def table_rows(self, n_known: int = 0) -> int:
        """Returns the number of rows: row 0 and the buckets."""
        del n_known
        return 1 + self.hash_buckets

    def tokens(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the row of each pair.

        Args:
            values: The `codes` of the features in `of`, one each, without missing ones.
        """
        from recsys.data.ingest import feature_graph

        return feature_graph.crossed_rows(values, len(self.of), self.hash_buckets)


class DateFeature(BucketFeature):
    """The quantile bucket of the day, and the month."""

    value: ClassVar[Value] = "date"
    format: str | None = None
    """Format of dates as text, like `interactions.timestamp_format`; `null`: ISO 8601."""

    @property
    def detail(self) -> str:
        """The format; empty for ISO 8601."""
        return self.format or ""

    @property
    def width(self) -> int:
        """Two tokens: the bucket and the month."""
        return 2

    def table_rows(self, n_known: int = 0) -> int:
        """Returns the number of rows: row 0, the buckets and the months."""
        return super().table_rows(n_known) + 12

    def tokens(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the row of the day's bucket, and the row of the month after the buckets."""
        from recsys.data.ingest import feature_graph

        days = feature_graph.days(values)[:, :1]
        months = feature_graph.months(days)
        return feature_graph.joined(
            feature_graph.bucket_rows(days, self.buckets, self.name),
            months.with_flat_values(months.flat_values + self.buckets),
        )

    def token_names(self, known: Sequence[str] = ()) -> list[str] | None:
        """Returns the names of the buckets and of the months."""
        return [*(super().token_names(known) or ()), *calendar.month_name[1:]]
