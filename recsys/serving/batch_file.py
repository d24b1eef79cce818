"""Recommendations for a file of users, written atomically as Parquet."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys import registry
from recsys.data import dead_letters
from recsys.data.config import CsvFormat, SourceConfig
from recsys.data.interactions import BAD_USER, NO_USER, is_bad_id, split_by_rules
from recsys.data.sources.csv_source import CsvSource, header_names
from recsys.data.sources.pieces import Piece, open_source, plan_pieces, read_piece
from recsys.data.sources.source_files import SourceFile, file_size
from recsys.data.sources.streams import read_line
from recsys.data.sources.values import to_ids, to_text
from recsys.errors import UsageError
from recsys.savedmodel.event_columns import CONTEXT
from recsys.savedmodel.signatures import SOURCES
from recsys.serving.served_model import RankedRows, Retriever
from recsys.system.files import replacing

SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("item_ids", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("known", pa.bool_()),
        ("source", pa.string()),
    ]
)
"""Schema of the file: items, the best first, fewer than requested if the catalogue has no more;
whether the data contain the user; the source of the answer, see `recsys.savedmodel.signatures`."""

ENCODED = SCHEMA.set(1, pa.field("item_ids", pa.list_(pa.dictionary(pa.int32(), pa.string()))))
"""`SCHEMA` with dictionary-encoded ids."""

USER = "user_id"
Report = Callable[[int, int], None]
"""Called with the number of users answered since the last call, and of the finished bytes of the
file."""

Answer = Callable[[pa.RecordBatch, int], pa.RecordBatch]
"""Returns recommendations for users, a batch of `UsersFile`, k items each, in the columns of
`ENCODED`; called from several threads."""

_MOST_ITEMS = 1 << 20
"""Maximum number of items in a block, so that their ids fit into one array."""
_AT_ONCE = 2
"""Number of blocks that are answered concurrently, to use several cores."""
_MOST_ID_BYTES = 1 << 26
"""Maximum size of a block's distinct ids for which Parquet uses a dictionary [bytes]."""


@dataclasses.dataclass
class Answered:
    """The result for a file of users.

    Attributes:
        out: The recommendations.
        rejected_file: Dead letters of rows that are not a user id; None if there are none.
        users: Number of answered users.
        unknown: Number of them that the bundle doesn't know.
        sources: Number of answers by source, see `recsys.savedmodel.signatures`.
        rejected: Number of rows that are not a user id.
        seconds: Time taken [s].
    """

    out: str
    rejected_file: str | None = None
    users: int = 0
    unknown: int = 0
    sources: dict[str, int] = dataclasses.field(default_factory=dict)
    rejected: int = 0
    seconds: float = 0.0


def recommend_file(
    answer: Answer, users: UsersFile, out: Path, k: int, block: int, report: Report
) -> Answered:
    """Writes recommendations for all users of a file, in its order, atomically to `out`.

    Args:
        answer: Returns the answers for a block of users, as `batch_answer`.
        users: The users, of whom a piece is in memory at a time.
        out: Parquet file to write or replace, in the columns of `SCHEMA`.
        k: Number of items per user.
        block: Most users that are answered at once.
        report: Progress callback.

    Raises:
        UsageError: `out` is a folder (R546), or `k` is out of range (R541).
        RecsysError: The file can't be read, or an answer fails.
    """
    done, sources = Answered(str(out)), Counter[str]()
    size = min(block, max(1, _MOST_ITEMS // k))
    if out.is_dir():
        rule = "The file to write must not be a folder."
        raise UsageError("R546", rule, "Name a file with --out.", str(out))
    with (
        writing(done, _writer) as (writer, rejects),
        ThreadPoolExecutor(_AT_ONCE) as threads,
    ):
        for asking, letters, n_bytes in users:
            if letters.num_rows:
                rejects.write_batch(letters)
                done.rejected += letters.num_rows
            blocks = [asking.slice(at, size) for at in range(0, asking.num_rows, size)]
            for answers in threads.map(answer, blocks, itertools.repeat(k)):
                writer.write_batch(answers)
                done.users += answers.num_rows
                done.unknown += pc.sum(pc.invert(answers["known"])).as_py()
                sources.update(answers["source"].to_pylist())
                report(answers.num_rows, 0)
            report(0, n_bytes)
    done.sources = {name: sources[name] for name in SOURCES if sources[name]}
    return done


@contextlib.contextmanager
def writing(
    done: Any, open_writer: Callable[[Path], pq.ParquetWriter]
) -> Iterator[tuple[pq.ParquetWriter, pq.ParquetWriter]]:
    """Yields the writers of the answers and of dead letters, which are written atomically.

    Args:
        done: The result; its `out` is written, its `rejected_file` and `seconds` are set.
        open_writer: Opens the file of the answers.
    """
    started, out = time.monotonic(), Path(done.out)
    rejected_file = out.with_name(f"{out.name.removesuffix('.parquet')}.rejected.parquet")
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(out) as file,
        replacing(rejected_file) as other,
        open_writer(file) as writer,
        pq.ParquetWriter(other, dead_letters.SCHEMA) as rejects,
    ):
        yield writer, rejects
    if done.rejected:
        done.rejected_file = str(rejected_file)
    else:
        rejected_file.unlink()
    done.seconds = time.monotonic() - started


def batch_answer(
    retriever: Retriever, users: pa.RecordBatch, k: int, context: Mapping[str, str] | None = None
) -> pa.RecordBatch:
    """Returns the best `k` items for users, in the columns of `ENCODED`.

    Seen items are left out, unless the bundle's config includes repeats.

    Args:
        retriever: Retriever of the bundle.
        users: A batch of `UsersFile`: ids, which may be unknown, and context by user.
        k: Number of items per user.
        context: Context of all users by raw column; columns of the file take precedence.

    Raises:
        UsageError: `k` is out of range (R541), or the model doesn't read a column of the context
            or can't parse a value (R549).
    """
    of_all = {name: [text] for name, text in (context or {}).items()}
    of_users = {
        name.removeprefix(CONTEXT): users[name].to_pylist()
        for name in users.schema.names
        if name != USER
    }
    inputs = retriever.query_inputs(users[USER].to_pylist(), context=of_all | of_users)
    ranked = retriever.rank(inputs, k, is_batch=True)
    return as_batch(users[USER], ranked, retriever.catalogue.items.ids_of_rows)


def as_batch(user_ids: pa.Array, ranked: RankedRows, ids_of_rows: pa.Array) -> pa.RecordBatch:
    """Returns answers in the columns of `ENCODED`."""
    is_item = ranked.rows > 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(is_item.sum(axis=1))]), pa.int32())
    # Each distinct id once, with its index for the lists.
    number = np.zeros(len(ids_of_rows), np.int32)
    rows = ranked.rows[is_item]
    number[rows] = 1
    used = np.flatnonzero(number)
    number[used] = np.arange(len(used), dtype=np.int32)
    ids = ids_of_rows.take(pa.array(used)).cast(pa.string())
    encoded = pa.DictionaryArray.from_arrays(pa.array(number[rows]), ids)
    columns = [
        user_ids.cast(pa.string()),
        pa.ListArray.from_arrays(offsets, encoded),
        pa.ListArray.from_arrays(offsets, pa.array(ranked.scores[is_item])),
        pa.array(ranked.known),
        pa.array(ranked.source, pa.binary()).cast(pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENCODED)


def _writer(file: Path) -> pq.ParquetWriter:
    """Returns a writer whose file has `SCHEMA`, without the dictionary encoding."""
    encoded = ["item_ids.list.element", "source"]
    return pq.ParquetWriter(
        file, ENCODED, use_dictionary=encoded, dictionary_pagesize_limit=_MOST_ID_BYTES,
        store_schema=False,
        # Statistics of ids are useless, and take longer than the rest.
        write_statistics=["user_id"],
    )  # fmt: skip


# --- a file of users: CSV, Parquet, JSON Lines, tf.Examples or plain text

# Small, because progress is reported after each piece.
_PIECE_BYTES = 2 << 20
_DELIMITERS = "\t;|,"
_NEVER = "\x1f"


@dataclasses.dataclass(frozen=True)
class UsersFile:
    """The users of a file of any size, in its order.

    Attributes:
        column: Column of the ids.
        context: Columns of their context, each named `context_` and a raw column of events.
        pieces: Parts of the file, which are read one after the other.
    """

    column: str
    context: tuple[str, ...]
    pieces: list[Piece]

    @classmethod
    def open(cls, file: Path, column: str | None = None) -> UsersFile:
        """Opens a file, and detects its format from its first bytes.

        Args:
            file: The file. `.txt` without a `column` has one id per line, and no header.
            column: Column of the ids; None: the first one.

        Raises:
            UsageError: There is no such file (R546).
            RecsysError: It can't be read, is damaged, or lacks the column.
        """
        if not file.is_file():
            rule = "The file of users must exist."
            cure = "Name a file of ids: CSV, Parquet, JSON Lines, or text with one id per line."
            raise UsageError("R546", rule, cure, str(file))
        source, name, names = detect(str(file), column)
        context = tuple(n for n in names if n.startswith(CONTEXT) and n != name)
        columns = [name, *context]
        return cls(name, context, plan_pieces(source, "users", columns, _PIECE_BYTES, [name]))

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches: `user_id`, and texts of the context."""
        return pa.schema([(name, pa.string()) for name in (USER, *self.context)])

    @property
    def n_bytes(self) -> int:
        """Approximate size of all pieces [bytes]."""
        return sum(piece.n_bytes for piece in self.pieces)

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, int]]:
        """Yields users in `schema`, dead letters of other rows, and the number of bytes read."""
        for piece in self.pieces:
            n_bytes = piece.n_bytes
            for batch in read_piece(piece):
                ids = to_ids(batch.columns.column(self.column))
                rules = [(ids.is_null(), NO_USER), (is_bad_id(ids), BAD_USER)]
                texts = [to_text(batch.columns.column(name)).fill_null("") for name in self.context]
                typed = pa.RecordBatch.from_arrays([ids, *texts], names=self.schema.names)
                good, letters = split_by_rules(batch, typed, rules)
                yield good.select(self.schema.names).cast(self.schema), letters, n_bytes
                n_bytes = 0


def detect(path: str, column: str | None) -> tuple[SourceConfig, str, list[str]]:
    """Returns the config for reading a file, the column of the users, and the names of all."""
    file = open_source(SourceFile(path, file_size(path)), SourceConfig(files=path))
    name = registry.name_of("source", file.source)
    source = SourceConfig(files=path, format=name)
    if isinstance(file.source, CsvSource):
        line = read_line(file.source.open(file), path)
        return _csv(path, line, source, column)
    names = list(file.source.column_names(file))
    return source, column or (names[0] if names else USER), names


def _csv(
    file: str, line: bytes, source: SourceConfig, column: str | None
) -> tuple[SourceConfig, str, list[str]]:
    is_plain = column is None and ".txt" in [suffix.lower() for suffix in Path(file).suffixes]
    if is_plain:
        csv = CsvFormat(delimiter=_NEVER, quote=None, names=(USER,))
        return source.model_copy(update={"csv": csv}), USER, [USER]
    text = line.decode("utf-8", "replace")
    delimiter = next((sign for sign in _DELIMITERS if sign in text), ",")
    csv = CsvFormat(delimiter=delimiter)
    names = list(header_names(line, csv))
    return source.model_copy(update={"csv": csv}), column or names[0], names
