"""Event features that are tokens: categories, and crosses of features."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import PositiveInt

from recsys.data.encodings import crossed
from recsys.data.event_features.feature import Encoded, EventFeature, Graph, Value
from recsys.data.feature_options import CrossOptions
from recsys.data.hashes import fingerprints


class Category(EventFeature):
    """The whole value is one token; new tokens get rows after the known ones."""

    min_count: PositiveInt = 1
    """Minimum number of events of a token with a row of its own."""
    hash_buckets: PositiveInt | None = None
    """Number of rows for hashed tokens; `null`: each known token has a row."""

    def learn(self, counted: pa.Table, previous: pa.Table | None) -> pa.Table:
        """Returns the known tokens: those of the run before, then the most frequent first."""
        if self.hash_buckets is not None:
            return pa.table({})
        known = pa.array([], pa.string())
        if previous is not None:
            known = previous["token"].combine_chunks()
        is_new = pc.and_(
            pc.greater_equal(counted["count"], self.min_count),
            pc.invert(pc.is_in(counted["value"], value_set=known)),
        )
        order = [("count", "descending"), ("value", "ascending")]
        new = counted.filter(is_new).sort_by(order)["value"]
        return pa.table({"token": pa.chunked_array([known, *new.chunks], pa.string())})

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0, and one per known token or bucket."""
        return 1 + (learned.num_rows if self.hash_buckets is None else self.hash_buckets)

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the row of each token; 0 if it is missing or unknown."""
        coded = values.dictionary_encode()
        if self.hash_buckets is not None:
            buckets = fingerprints(coded.dictionary) % np.uint64(self.hash_buckets)
            rows = 1 + buckets.astype(np.int32)
        else:
            known = learned["token"].combine_chunks()
            places = pc.index_in(coded.dictionary, value_set=known)
            rows = 1 + pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int32)
        codes = pc.fill_null(coded.indices, len(rows)).to_numpy(zero_copy_only=False)
        return np.append(rows, np.int32(0))[codes][:, None]

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of texts, empty for a missing one."""
        from recsys.data import event_graphs

        if self.hash_buckets is not None:
            return event_graphs.hashed(self.hash_buckets)
        graph: Graph = event_graphs.TokenRows(learned["token"].to_pylist())
        return graph

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the tokens; None if they are hashed."""
        return ["", *learned["token"].to_pylist()] if self.hash_buckets is None else None


class Cross(CrossOptions, EventFeature):
    """A pair of the tokens of other features of the event, hashed to a row."""

    value: ClassVar[Value] = "tokens"

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0 and the buckets."""
        return 1 + self.hash_buckets

    def encode(self, values: np.ndarray, learned: pa.Table) -> Encoded:
        """Returns the row of each pair of tokens `[n, features]`; 0 if one is missing."""
        return crossed(values, self.hash_buckets)

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of tokens `[n, features]` int64."""
        from recsys.data import encoding_graphs

        return lambda tokens: encoding_graphs.crossed(tokens, self.hash_buckets)
