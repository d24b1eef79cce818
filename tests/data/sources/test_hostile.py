"""Files made to break a reader: a sentence or dead letters for each, in bounded time and memory."""

import gzip
import json
import subprocess
import sys
from collections import Counter

import pytest
from damaged_rows import COLUMNS, NESTED, NOW, expected, generate, write_csv, write_jsonl
from hostile_files import FILES, csv_text, json_lines
from hypothesis import given
from hypothesis import strategies as st
from places import SUPPORT
from reading import read_interactions

from recsys.config import InteractionColumns, InteractionsConfig
from recsys.data.interactions import drop_duplicates, interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.errors import RecsysError

_SCRIPT = SUPPORT / "read_hostile.py"
_LIMIT_S, _LIMIT_BYTES = 20, 2 << 30
# Reading these takes seconds; smaller files of the others test the same guards.
_SLOW = frozenset(
    {
        "a bz2 bomb of good rows",
        "an xz bomb of one line",
        "a page of 1 GB in Parquet",
        "200 million rows in 1 KB of Parquet",
        "300 rows of 50 keys of their own",
        "2,000 columns of Parquet",
        "a line of 150 MB",
        "an open quote before long lines",
    }
)


def read_all(folder, names):
    """Returns what came of each file, read in a process of its own; a crash leaves the rest out."""
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), str(folder), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    results = {(line["name"], line["way"]): line for line in lines if "way" in line}
    last = lines[-1] if lines else {}
    return results, f"ended with {done.returncode} at {last}: {done.stderr[-500:]}"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return read_all(tmp_path_factory.mktemp("hostile"), [n for n in FILES if n not in _SLOW])


def see_read(file, result):
    assert result["code"] == file.code, result["text"]
    if file.code:
        see_sentence(result["text"])
    elif file.good is not None:
        assert (result["good"], result["letters"]) == (file.good, dict(file.letters))


def see_check(file, result):
    assert result["code"] in file.check, result["text"]
    if result["code"]:
        assert result["exit"] in (1, 2)
        see_sentence(result["text"])
    see_plain(result["report"].replace("\n", ""))


def see_sentence(text):
    assert text.startswith("[R")
    assert len(text) < 2000
    see_plain(text)


def see_plain(text):
    assert text.isprintable(), text


def see_bounds(result):
    assert result["seconds"] < _LIMIT_S
    assert result["peak"] < _LIMIT_BYTES


@pytest.mark.parametrize("name", [name for name in FILES if name not in _SLOW])
@pytest.mark.parametrize("way", ["read", "check"])
def test_a_hostile_file_is_a_sentence_or_dead_letters(results, name, way):
    found, end = results
    assert (name, way) in found, end
    see_bounds(found[name, way])
    (see_read if way == "read" else see_check)(FILES[name], found[name, way])


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(_SLOW))
def test_a_large_hostile_file_is_a_sentence_or_dead_letters(tmp_path, name):
    found, end = read_all(tmp_path, [name])
    for way, see in (("read", see_read), ("check", see_check)):
        assert (name, way) in found, end
        see_bounds(found[name, way])
        see(FILES[name], found[name, way])


_WHOLE = {
    "a.csv": csv_text(12).encode(),
    "a.jsonl": json_lines(12).encode(),
    "a.csv.gz": gzip.compress(csv_text(12).encode()),
    "wide.csv": csv_text(12).encode("utf-16"),
}
_PARTS = [
    b'"',
    b"\n",
    b"\0",
    b"{",
    b"[" * 70,
    b"\xff",
    b"\\ud800",
    b"1e999",
    b"\x1b[31m",
    b"9" * 40,
]


@given(
    st.sampled_from(sorted(_WHOLE)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.sampled_from(_PARTS)), max_size=4),
)
def test_a_damaged_file_is_read_to_a_sentence_or_dead_letters(tmp_path_factory, name, damage):
    content = _WHOLE[name]
    for place, n_bytes, part in damage:
        at = round(place * len(content))
        content = content[:at] + part + content[at + n_bytes :]
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    columns = InteractionColumns(user="user", item="item", timestamp="time")
    config = InteractionsConfig(files=str(path), columns=columns)
    try:
        for piece in plan_pieces(config, "interactions", interaction_columns(config)):
            for batch in read_piece(piece):
                good, letters = parse_interactions(batch, config, 1_700_000_000, 0)
                assert good.num_rows + letters.num_rows == batch.n_read
    except RecsysError as error:
        see_sentence(str(error))


# --- the fuzz corpus


def check(path, rows, damaged, columns=COLUMNS):
    good, reasons = expected(rows)
    config = InteractionsConfig(files=str(path), columns=columns)
    read = read_interactions(config, NOW, path.stat().st_size // 5)
    found = Counter(reason for _, reason in read.reasons())
    assert read.n_read == len(rows) + sum(damaged.values())
    assert found == Counter(reasons) + Counter(damaged)
    values = [read.good[name].to_pylist() for name in ("user_id", "item_id", "timestamp")]
    assert Counter(zip(*values, strict=True)) == Counter(good)
    kept, n_duplicates = drop_duplicates(read.good)
    assert kept.num_rows == len(set(good))
    assert read.n_read == kept.num_rows + n_duplicates + found.total()


def test_every_row_of_a_damaged_csv_is_good_rejected_or_a_duplicate(tmp_path):
    rows, damaged = write_csv(tmp_path / "f.csv", generate(60_000, 1), 2)
    check(tmp_path / "f.csv", rows, damaged)


def test_every_row_of_damaged_json_lines_is_good_rejected_or_a_duplicate(tmp_path):
    rows = generate(40_000, 3)
    damaged = write_jsonl(tmp_path / "f.jsonl", rows, 4)
    check(tmp_path / "f.jsonl", rows, damaged, NESTED)


@pytest.mark.thorough
def test_every_row_of_a_million_is_good_rejected_or_a_duplicate(tmp_path):
    rows, damaged = write_csv(tmp_path / "f.csv", generate(1_000_000, 5), 6)
    check(tmp_path / "f.csv", rows, damaged)
