"""Splits by time, the last event, at random and as given, from files to the store."""

import json
import random

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from split_worlds import events, made_up, make, of_users, positives, source, unique, write

from recsys.data.split import (
    DAY_S,
    choose_cut,
    count_days,
    file_positions,
    split_rows,
)
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError


@pytest.mark.parametrize(
    ("days", "share", "cut_day"),
    [
        ({1: 50, 2: 30, 3: 20}, 0.2, 3),
        ({1: 50, 2: 30, 3: 20}, 0.5, 2),
        ({1: 50, 2: 30, 3: 20}, 0.01, 3),
        ({1: 50, 2: 30, 3: 20}, 0.99, 2),
        ({1: 60, 2: 20, 3: 20}, 0.3, 2),
        ({1: 5, 90: 5}, 0.1, 90),
    ],
    ids=["exact", "half", "too-small", "too-large", "tie-takes-the-earlier", "gap"],
)
def test_the_cut_is_the_midnight_with_the_closest_share(days, share, cut_day):
    assert choose_cut(days, share) == cut_day * DAY_S


@given(
    st.dictionaries(st.integers(400, 430), st.integers(1, 9), min_size=2),
    st.floats(0.01, 0.99),
)
def test_no_other_midnight_is_closer(days, share):
    total = sum(days.values())

    def distance(day):
        return abs(sum(n for d, n in days.items() if d >= day) / total - share)

    cut = choose_cut(days, share) // DAY_S
    assert min(days) < cut <= max(days)
    others = range(min(days) + 1, max(days) + 1)
    assert distance(cut) == pytest.approx(min(distance(day) for day in others))


def test_positives_of_one_day_cannot_be_cut():
    with pytest.raises(RecsysError, match=r"R207.*'7 positives on 1 days'"):
        choose_cut({3: 7}, 0.1)


def test_without_a_positive_the_rules_that_say_what_one_is_are_named():
    with pytest.raises(RecsysError, match=r"R207.*positive_at_least.*weights"):
        choose_cut({}, 0.1)


def test_rows_and_positives_are_counted_by_day():
    table = pa.table({"timestamp": [DAY_S, DAY_S - 1, DAY_S + 1, 4 * DAY_S], "label": [1, 0, 1, 0]})
    assert count_days(table) == [[0, 1, 0], [1, 2, 2], [4, 1, 0]]
    assert count_days(table.select(["label"])) == count_days(table.slice(4)) == []


def test_more_files_or_lists_than_positions_can_distinguish_are_refused():
    line, element = np.array([1, 2**26 - 1]), np.array([2**20 - 1] * 2)
    last = file_positions(2**17 - 2, line, element)
    assert file_positions(2**17 - 1, line)[0].as_py() > last[1].as_py() > last[0].as_py()
    with pytest.raises(RecsysError, match="R266"):
        file_positions(2**17, line)
    with pytest.raises(RecsysError, match=r"R266.*67,108,864 rows.*row 67,108,864"):
        file_positions(0, line + 1, element)


pytestmark = pytest.mark.pipeline


def balanced(summary):
    return summary["read"] == summary["good"] + summary["rejected"] + summary["duplicates"]


def test_the_last_positive_of_each_user_is_held_out_in_the_order_of_the_files(tmp_path):
    rows = made_up()
    files = write(tmp_path / "in" / "a.csv", rows[:90]), write(tmp_path / "in" / "b.csv", rows[90:])
    summary, store = make(source(files, "last_out", order="file"), tmp_path)
    expected = of_users(positives(rows))
    trained = {u: items[:-1] if len(items) > 1 else items for u, items in expected.items()}
    held = {u: items[-1:] for u, items in expected.items() if len(items) > 1}
    known = {item for items in trained.values() for item in items}
    held = {u: items if items[0] in known else [None] for u, items in held.items()}
    assert of_users(events(tmp_path, store, "train")) == trained
    assert of_users(events(tmp_path, store, "eval")) == held
    # Repeats are events of their own.
    assert (summary["duplicates"], summary["good"]) == (0, len(rows))
    assert balanced(summary)
    manifest = json.loads((tmp_path / "data" / "store" / "store.json").read_text())
    assert (manifest["split"], manifest["order"]) == ("last_out", "file")
    # A history is what stands above in the files, the newest first.
    log, places = store.train, np.arange(len(store.train))
    for (user, _), place, history in zip(
        events(tmp_path, store, "train"), places, log.histories(places, 4), strict=True
    ):
        before = np.asarray(log.item_row[log.offsets[log.user_index(places)[place]] : place])
        assert history.tolist() == [*before[::-1].tolist(), 0, 0, 0, 0][:4], user


def test_by_time_the_last_positive_is_the_one_with_the_latest_time(tmp_path):
    rows = [("u", "i1", 5, 300), ("u", "i2", 5, 900), ("u", "i3", 1, 999), ("v", "i1", 5, 500)]
    rows += [("u", "i4", 5, 100), ("w", "i4", 5, 50), ("w", "i2", 5, 50), ("x", "i2", 5, 10)]
    rows = [(user, item, rating, 1_700_000_000 + time) for user, item, rating, time in rows]
    files = write(tmp_path / "in.csv", rows, "user,item,rating,time")
    columns = {"timestamp": "time"}
    _, store = make(source(files, "last_out", columns=columns), tmp_path)
    assert sorted(events(tmp_path, store, "eval")) == [("u", "i2"), ("w", "i2")]
    assert of_users(events(tmp_path, store, "train"))["u"] == ["i4", "i1"]


def test_a_random_split_holds_out_the_same_pairs_in_every_run(tmp_path):
    rows = made_up(300)
    config = source(write(tmp_path / "a.csv", rows), "random")
    summary, store = make(config, tmp_path / "a")
    chosen = positives(unique(rows))
    train, held = (events(tmp_path / "a", store, part) for part in ("train", "eval"))
    assert len(train) + len(held) == len(chosen)
    assert balanced(summary)
    assert summary["duplicates"] == len(rows) - len(unique(rows))
    assert 0.18 < len(held) / len(chosen) < 0.30
    # Everybody is left something to be known by.
    assert {user for user, _ in held} <= {user for user, _ in train}
    # New rows, in another order, move nothing of those who had something else anyway.
    more = [*rows, *made_up(300, seed=1)][::-1]
    _, later = make(source(write(tmp_path / "b.csv", more), "random"), tmp_path / "b")
    later_train = set(events(tmp_path / "b", later, "train"))
    items = {item for _, item in train}
    assert not {pair for pair in held if pair[1] in items} & later_train


def test_without_an_order_positions_of_a_history_say_nothing(tmp_path):
    rows = [(f"u{user}", f"i{item}", 5) for user in range(200) for item in range(10)]
    _, store = make(source(write(tmp_path / "a.csv", rows), "random"), tmp_path)
    first = [items[0] for items in of_users(events(tmp_path, store, "train")).values()]
    assert len(set(first)) == 10
    # Nothing of an ordinal goes for a date.
    users = Vocabulary.load(tmp_path / "data" / "vocabulary" / "users.parquet")
    assert (store.cut, int(users.last_seen.max())) == (0, 0)


@pytest.mark.parametrize("by", ["column", "files"])
def test_parts_that_the_data_name_are_taken_as_they_are(tmp_path, by):
    rows = made_up()
    parts = ["train" if n % 5 else "test" for n in range(len(rows))]
    train, test = ([r for r, p in zip(rows, parts, strict=True) if p == which]
                   for which in ("train", "test"))  # fmt: skip
    if by == "column":
        lines = [(*row, part) for row, part in zip(rows, parts, strict=True)]
        lines.append(("u1", "i1", 5, "valid"))
        files = write(tmp_path / "in.csv", lines, "user,item,rating,part")
        config = source(files, "given", columns={"part": "part"})
    else:
        write(tmp_path / "in" / "a.csv", train)
        held = write(tmp_path / "in" / "held.csv", test)
        # The pattern names the held-out file too.
        config = source(str(tmp_path / "in" / "*.csv"), "given", eval_files=held)
    summary, store = make(config, tmp_path)
    assert set(events(tmp_path, store, "train")) == set(positives(unique(train)))
    known = {item for _, item in positives(unique(train))}
    expected = {(u, i if i in known else None) for u, i in positives(unique(test))}
    assert set(events(tmp_path, store, "eval")) == expected
    reasons = {"part is in neither train_parts nor eval_parts": 1} if by == "column" else {}
    assert summary["by_reason"] == reasons
    assert balanced(summary)


@pytest.mark.parametrize("by", ["column", "files"])
def test_a_part_for_validation_is_trained_on_and_marked(tmp_path, by):
    rows = unique(made_up())
    parts = [("train", "valid", "test", "train")[n % 4] for n in range(len(rows))]
    of = {which: [row for row, part in zip(rows, parts, strict=True) if part == which]
          for which in ("train", "valid", "test")}  # fmt: skip
    if by == "column":
        lines = [(*row, part) for row, part in zip(rows, parts, strict=True)]
        files = write(tmp_path / "in.csv", lines, "user,item,rating,part")
        config = source(files, "given", columns={"part": "part"}, valid_parts=("valid",))
    else:
        paths = {which: write(tmp_path / "in" / f"{which}.csv", of[which]) for which in of}
        named = {"valid_files": paths["valid"], "eval_files": paths["test"]}
        config = source(str(tmp_path / "in" / "*.csv"), "given", **named)
    summary, store = make(config, tmp_path)
    train = events(tmp_path, store, "train")
    valid = [pair for pair, is_valid in zip(train, store.train.valid, strict=True) if is_valid]
    assert sorted(valid) == sorted(positives(of["valid"]))
    assert sorted(train) == sorted(positives([*of["train"], *of["valid"]]))
    assert balanced(summary)
    # It is no feature of the examples, and nothing is marked where nothing is named.
    assert store.eval.valid is None
    names = [f.name for f in (tmp_path / "data" / "store" / "train" / "00000").iterdir()]
    assert "valid.npy" in names
    for file in (tmp_path / "examples").glob("Split-*/*.parquet"):
        assert "part" not in pq.read_schema(file).names


@pytest.mark.parametrize("parts", [{"eval_parts": ("held",)}, {"train_parts": ("all",)}])
def test_a_split_with_nothing_on_one_side_is_refused(tmp_path, parts):
    rows = [("u", "i", 5, "train"), ("u", "j", 5, "test"), ("v", "i", 5, "train")]
    files = write(tmp_path / "in.csv", rows, "user,item,rating,part")
    with pytest.raises(RecsysError) as caught:
        make(source(files, "given", columns={"part": "part"}, **parts), tmp_path)
    assert caught.value.code == "R265"


@pytest.mark.parametrize("split", ["last_out", "random"])
def test_rows_with_labels_are_held_out_like_the_positives(split):
    n, chance = 400, random.Random(3)
    rows = pa.table(
        {
            "user_id": [f"u{chance.randrange(20)}" for _ in range(n)],
            "item_id": [f"i{chance.randrange(40)}" for _ in range(n)],
            "timestamp": [chance.randrange(1000) for _ in range(n)],
            "label": [chance.randrange(2) for _ in range(n)],
        }
    )
    labelled = rows.append_column("label:like", rows["label"].cast(pa.int8()))
    plain, parts = (split_rows(table, split, 0.3) for table in (rows, labelled))
    both = {name: part.to_pylist() for name, part in parts.items()}
    positives = [{k: r[k] for k in rows.column_names} for r in both["eval"] if r["label"]]
    assert positives == plain["eval"].to_pylist()
    others = [r for r in both["eval"] if not r["label"]]
    assert sum(map(len, both.values())) == n
    if split == "random":
        assert (
            0.2
            < len(others) / sum(not row["label"] for part in both.values() for row in part)
            < 0.4
        )
        return
    held = {r["user_id"]: r["timestamp"] for r in positives}
    for name, part in both.items():
        for row in part:
            if not row["label"]:
                is_late = row["timestamp"] >= held.get(row["user_id"], 1000)
                assert is_late == (name == "eval")
