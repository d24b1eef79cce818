"""The rows that a run reads for a config's interactions."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.config import InteractionsConfig
from recsys.data.interactions import interaction_columns, interaction_schema, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.data.sources.source import RawBatch


@dataclasses.dataclass(frozen=True)
class Read:
    """The typed rows, the dead letters, and how many rows and empty lists there were."""

    good: pa.Table
    letters: list[dict[str, Any]]
    n_read: int
    n_empty: int

    def reasons(self) -> list[tuple[int, str]]:
        """Returns line and reason of each dead letter."""
        return [(letter["line"], letter["reason"]) for letter in self.letters]


def read_interactions(config: InteractionsConfig, now: int, piece_bytes: int = 1 << 26) -> Read:
    """Reads the interactions of `config` as of `now`, in pieces of `piece_bytes`."""
    good, letters = [interaction_schema(config).empty_table()], []
    n_read = n_empty = 0
    columns = interaction_columns(config)
    for piece in plan_pieces(config, "interactions", columns, piece_bytes):
        for batch in read_piece(piece):
            rows, rejected = parse_interactions(batch, config, now, piece.file_index)
            good.append(pa.Table.from_batches([rows]))
            letters += rejected.to_pylist()
            n_read += batch.n_read
            n_empty += batch.n_empty
    return Read(pa.concat_tables(good, promote_options="default"), letters, n_read, n_empty)


def lines_of(batch: RawBatch) -> list[int]:
    """Returns the line of each good row of a batch."""
    return batch.line(np.arange(batch.columns.num_rows)).tolist()
