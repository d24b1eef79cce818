"""Rows with every kind of damage: none is lost, none is counted twice, in any format.

The reference is plain Python: its csv and json, and the rules written down again.
"""

from collections import Counter

import pytest
from damaged_rows import COLUMNS, NESTED, NOW, expected, generate, write_csv, write_jsonl
from reading import read_interactions

from recsys.config import InteractionsConfig
from recsys.data.interactions import drop_duplicates


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
