"""Rows with every kind of damage: none is lost, none is counted twice, in any format.

The reference is plain Python: its csv and json, and the rules written down again.
"""

from collections import Counter

import pyarrow as pa
import pytest
from damaged_rows import COLUMNS, NESTED, NOW, expected, generate, write_csv, write_jsonl

from recsys.config import InteractionsConfig
from recsys.data import interactions as rules
from recsys.data.dead_letters import count_reasons
from recsys.data.interactions import drop_duplicates, interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece


def ingest(path, piece_bytes, **config):
    config = InteractionsConfig(files=str(path), columns=COLUMNS, **config)
    asked = interaction_columns(config)
    typed, reasons, n_read = [], Counter(), 0
    for piece in plan_pieces(config, "interactions", asked, piece_bytes):
        for batch in read_piece(piece):
            good, letters = parse_interactions(batch, config, NOW, piece.file_index)
            typed.append(good)
            reasons.update(count_reasons(letters))
            n_read += batch.n_read
    return pa.Table.from_batches(typed), dict(reasons), n_read


def check(path, rows, damaged, **config):
    good, reasons = expected(rows)
    typed, found, n_read = ingest(path, path.stat().st_size // 5, **config)
    assert n_read == len(rows) + sum(damaged.values())
    assert found == Counter(reasons) + Counter(damaged)
    columns = [typed[name].to_pylist() for name in ("user_id", "item_id", "timestamp")]
    assert Counter(zip(*columns, strict=True)) == Counter(good)
    kept, n_duplicates = drop_duplicates(typed)
    assert kept.num_rows == len(set(good))
    assert n_read == kept.num_rows + n_duplicates + sum(found.values())


def test_every_row_of_a_damaged_csv_is_good_rejected_or_a_duplicate(tmp_path):
    rows, damaged = write_csv(tmp_path / "f.csv", generate(60_000, 1), 2)
    check(tmp_path / "f.csv", rows, damaged)


def test_every_row_of_damaged_json_lines_is_good_rejected_or_a_duplicate(tmp_path):
    rows = generate(40_000, 3)
    damaged = write_jsonl(tmp_path / "f.jsonl", rows, 4)
    good, reasons = expected(rows)
    source = InteractionsConfig(files=str(tmp_path / "f.jsonl"), columns=NESTED)
    typed, found, n_read = [], Counter(), 0
    for piece in plan_pieces(source, "interactions", interaction_columns(source), 500_000):
        for batch in read_piece(piece):
            rows_, letters = parse_interactions(batch, source, NOW, 0)
            typed.append(rows_)
            found.update(count_reasons(letters))
            n_read += batch.n_read
    assert n_read == len(rows) + sum(damaged.values())
    assert found == Counter(reasons) + Counter(damaged)
    table = pa.Table.from_batches(typed)
    columns = [table[name].to_pylist() for name in ("user_id", "item_id", "timestamp")]
    assert Counter(zip(*columns, strict=True)) == Counter(good)


@pytest.mark.thorough
def test_every_row_of_a_million_is_good_rejected_or_a_duplicate(tmp_path):
    rows, damaged = write_csv(tmp_path / "f.csv", generate(1_000_000, 5), 6)
    check(tmp_path / "f.csv", rows, damaged)


def test_the_reference_knows_good_rows_and_bad_ones():
    good, reasons = expected(
        [
            ["1", "2", "1600000000", "1", "1"],
            ["", "2", "1600000000", "1", "1"],
            ["1", "2", "1600000000", "1", "-1"],
        ]
    )
    assert good == [("1", "2", 1_600_000_000)]
    assert reasons == {rules.NO_USER: 1, rules.NEGATIVE_WEIGHT: 1}
