"""Rows that hold a list of events, in every format that has lists: one event a row comes out."""

import json

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from reading import lines_of, read_interactions

from recsys.config import InteractionsConfig, ListOfEvents
from recsys.data.interactions import drop_duplicates
from recsys.data.sources.jsonl_source import JsonLinesSource
from recsys.data.sources.nested import MOST_EVENTS, NO_LIST, TOO_LONG, UNEQUAL, explode
from recsys.data.sources.pieces import Piece
from recsys.data.sources.values import to_ids
from recsys.errors import RecsysError

NOW = 1_800_000_000
TIME = 1_600_000_000


def config_of(path, columns, **more):
    raw = {"files": str(path), "columns": columns, **more}
    return InteractionsConfig.model_validate(raw, strict=False)


def read(config, piece_bytes=1 << 26):
    return read_interactions(config, NOW, piece_bytes)


def pairs(found):
    ids = [found.good[name].to_pylist() for name in ("user_id", "item_id")]
    return list(zip(*ids, strict=True))


PAIRS = [("1", "7"), ("1", "8"), ("1", "7"), ("3", "9")]


def write_jsonl(folder):
    rows = [
        {"session": 1, "events": [{"aid": a, "ts": TIME + a} for a in (7, 8, 7)]},
        {"session": 2, "events": []},
        {"session": 3, "events": [{"aid": 9, "ts": TIME}]},
    ]
    path = folder / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_mixed_jsonl(folder):
    path = write_jsonl(folder)  # A number beyond 2⁵³ is parsed line by line.
    path.write_text(path.read_text().replace('"session": 2', f'"big": {2**60}.0, "session": 2'))
    return path


def write_parquet(folder):
    events = [[{"aid": a, "ts": TIME + a} for a in (7, 8, 7)], [], [{"aid": 9, "ts": TIME}]]
    path = folder / "f.parquet"
    pq.write_table(
        pa.table({"session": [1, 2, 3], "events": events, "more": [[1], [2], [3]]}), path
    )
    return path


@pytest.mark.parametrize("write", [write_jsonl, write_mixed_jsonl, write_parquet])
def test_lists_of_objects_are_events_with_fields(tmp_path, write):
    columns = {"user": "session", "item": "events.aid", "timestamp": "events.ts"}
    found = read(config_of(write(tmp_path), columns, explode={"column": "events"}))
    assert pairs(found) == PAIRS
    assert (found.n_read, found.n_empty, found.letters) == (4, 1, [])
    # The same item at the same second: a duplicate as any other.
    assert drop_duplicates(found.good)[1] == 1


_LISTS = [[7, 8, 7], [], [9]]
_TEXTS = pa.array([["7", "8", "7"], [], ["9"]], pa.large_list(pa.string()))
_JSON = [json.dumps({"user": n, "items": items}) for n, items in enumerate(_LISTS, 1)]


@pytest.mark.parametrize(
    ("name", "content", "csv", "separator"),
    [
        ("f.parquet", pa.table({"user": [1, 2, 3], "items": _LISTS}), {}, None),
        ("f.parquet", pa.table({"user": ["1", "2", "3"], "items": _TEXTS}), {}, None),
        ("f.jsonl", "\n".join(_JSON), {}, None),
        ("f.csv", 'user,more,items\n1,x,"7|8|7"\n2,y,\n3,"z,z",9\n', {}, "|"),
        ("f.txt", "1 7 8 7\n2 \r\n\n3 9\n",
         {"delimiter": " ", "names": ["user", "items"]}, " "),
        ("f.tsv", 'user\tmore\titems\n1\t"x\t7\t8\t7\n2\ty\n3\tz\t9\n', {"delimiter": "\t"}, "\t"),
    ],
    ids=["parquet", "large-lists", "json", "separated", "ragged", "ragged-with-header"],
)  # fmt: skip
def test_lists_of_values_are_events_in_their_order(tmp_path, name, content, csv, separator):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        pq.write_table(content, path)
    events = {"column": "items", "separator": separator}
    columns = {"user": "user", "item": "items"}
    found = read(config_of(path, columns, csv=csv, explode=events, order="file"))
    assert pairs(found) == PAIRS
    assert (found.n_read, found.n_empty, found.letters) == (4, 1, [])
    assert (np.diff(found.good["place"].to_numpy()) > 0).all()
    # In the order of a file each row is an event of its own.
    assert drop_duplicates(found.good)[1] == 0


@pytest.mark.parametrize("name", ["f.txt", "f.parquet"])
def test_a_file_of_lists_that_is_cut_gives_the_rows_of_the_whole(tmp_path, name):
    lists = [list(range(user % 7)) for user in range(2000)]
    if name == "f.parquet":
        table = pa.table({"user": [str(user) for user in range(2000)], "items": lists})
        pq.write_table(table, tmp_path / name, row_group_size=90)
    else:
        lines = [f"{user} " + " ".join(map(str, items)) for user, items in enumerate(lists)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    csv = {"delimiter": " ", "names": ["user", "items"]}
    events = {"column": "items", "separator": " "}
    columns = {"user": "user", "item": "items"}
    config = config_of(tmp_path / name, columns, csv=csv, explode=events, order="file")
    whole, cut = read(config), read(config, piece_bytes=1000)
    rows, pieced = (
        one.good.sort_by("place").select(["user_id", "item_id", "label"]) for one in (whole, cut)
    )
    assert rows.equals(pieced)
    assert whole.n_empty == cut.n_empty == 286
    assert whole.n_read == sum(user % 7 for user in range(2000))
    # Places don't leave room for the longest list in each row: large files would have too many.
    assert pc.max(cut.good["place"]).as_py() < 1 << 20
    assert len(set(cut.good["place"].to_pylist())) == whole.n_read


def test_an_event_that_breaks_a_rule_costs_itself_and_names_its_row(tmp_path):
    rows = [
        {
            "s": "a",
            "events": [{"id": "x", "t": TIME}, {"id": None, "t": TIME}, {"id": "y", "t": 5}],
        },
        {"s": "b"},
        {"s": None, "events": [{"id": "x", "t": TIME}, None]},
    ]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"user": "s", "item": "events.id", "timestamp": "events.t"}
    found = read(config_of(tmp_path / "f.jsonl", columns, explode={"column": "events"}))
    assert pairs(found) == [("a", "x")]
    assert sorted(found.reasons()) == [
        (1, "empty item id"), (1, "timestamp before 1971 or in the future"), (2, NO_LIST),
        (3, "empty user id"), (3, "empty user id"),
    ]  # fmt: skip
    assert found.n_read == found.good.num_rows + len(found.letters)
    # The dead letter of an event shows the event, not the whole list.
    assert json.loads(found.letters[-2]["row"])["events.id"] == "x"


def test_a_list_too_long_for_memory_is_one_dead_letter(tmp_path):
    lists = [[1] * (MOST_EVENTS + 1), [1] * 1_000_000, [1] * 5000, [2]]
    users = ["long", "fits", "x" * 60_000, "short"]
    pq.write_table(pa.table({"user": users, "items": lists}), tmp_path / "f.parquet")
    columns = {"user": "user", "item": "items"}
    found = read(config_of(tmp_path / "f.parquet", columns, explode={"column": "items"}))
    assert found.reasons() == [(1, TOO_LONG), (3, TOO_LONG)]
    assert all(len(letter["row"]) <= 65_536 for letter in found.letters)
    assert found.good.num_rows == 1_000_001


def test_fields_in_lists_of_different_lengths_are_a_dead_letter(tmp_path):
    rows = [{"u": 1, "e": {"i": [1, 2], "t": [TIME]}}, {"u": 2, "e": {"i": [3], "t": [TIME]}}]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"user": "u", "item": "e.i", "timestamp": "e.t"}
    found = read(config_of(tmp_path / "f.jsonl", columns, explode={"column": "e"}))
    assert pairs(found) == [("2", "3")]
    assert found.reasons() == [(1, f"{UNEQUAL} (e.i 2, e.t 1)")]


def test_a_list_that_no_column_reads_is_a_mistake_in_the_config():
    with pytest.raises(ValueError, match="refer to the column of explode, 'events'"):
        config_of("f.jsonl", {"user": "u", "item": "aid"}, explode={"column": "events"})


def test_objects_themselves_are_no_column_of_parquet(tmp_path):
    columns = {"user": "session", "item": "events"}
    config = config_of(write_parquet(tmp_path), columns, explode={"column": "events"})
    with pytest.raises(RecsysError, match=r"R254.*events.FIELD"):
        read(config)


_VALUES = st.none() | st.integers(0, 9) | st.sampled_from(["x", 2**60, 6.5])
_EVENTS = st.none() | st.dictionaries(st.sampled_from(["a", "t"]), _VALUES)
_PLAIN = st.fixed_dictionaries({"a": st.integers(0, 9), "t": st.integers(0, 9)})
_LISTS = st.none() | st.lists(_EVENTS, max_size=4) | st.lists(_PLAIN, max_size=4)
_ROWS = st.lists(st.fixed_dictionaries({"s": st.sampled_from([1, "u"])}, optional={"e": _LISTS}))


def written(value):
    return None if value is None else str(value)


@example([{"s": "u", "e": [None, {}]}], 20)
@example([{"s": 1, "e": [{"t": 5}]}, {"s": "u", "e": [{"a": 1}]}], 20)
@example([{"s": 1, "e": [None, {"a": 2, "t": None}, {"a": 1, "t": None}]}], 1 << 20)
@given(_ROWS, st.sampled_from([20, 60, 1 << 20]))
def test_json_lines_of_any_lists_give_the_events_that_plain_python_gives(
    tmp_path_factory, rows, block_bytes
):
    path = tmp_path_factory.getbasetemp() / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, letters, n_empty = [], [], 0
    source, columns, size = JsonLinesSource(), ("s", "e.a", "e.t"), path.stat().st_size
    piece = Piece(source, str(path), 0, None, columns, size, 0, size, first=0, n_bytes=size)
    for batch in source.read_rows(piece, source.blocks(piece, block_bytes)):
        for part in explode(batch, ListOfEvents(column="e")):
            columns = [to_ids(column).to_pylist() for column in part.columns.columns]
            found += zip(lines_of(part), *columns, strict=True)
            letters += [(one["line"], one["reason"]) for one in part.rejected.to_pylist()]
            n_empty += part.n_empty
    numbered = list(enumerate(rows, 1))
    assert found == [
        (line, written(row["s"]), *(written((event or {}).get(name)) for name in ("a", "t")))
        for line, row in numbered
        for event in row.get("e") or []
    ]
    assert letters == [(line, NO_LIST) for line, row in numbered if row.get("e") is None]
    assert n_empty == sum(row.get("e") == [] for row in rows)
