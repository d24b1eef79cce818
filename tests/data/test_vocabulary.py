"""Vocabularies: rows never move, counts add up, and look-ups are exact."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.config import VocabularyConfig
from recsys.data import vocabulary as vocabulary_module
from recsys.data.hashes import fingerprints
from recsys.data.ingest import buckets, growth
from recsys.data.vocabulary import (
    COUNTS_SCHEMA,
    IdIndex,
    Vocabulary,
    count_codes,
    merge_counts,
)
from recsys.errors import RecsysError
from tests.support.growing import grow

DAY = 86_400
IDS = ["a", "b", "c", "d", "e", "f", "g", "007", "7", "é", ""]


def counted(seen):
    """`seen`: {id: (count, day last seen)}."""
    rows = [(id_, count, day * DAY) for id_, (count, day) in seen.items()]
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 3
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, COUNTS_SCHEMA, strict=True)],
        COUNTS_SCHEMA.names,
    )


def row_of(vocabulary):
    """The row of each id that has one of its own."""
    return {
        id_: row for row, id_ in enumerate(vocabulary.ids_of_rows.to_pylist()) if id_ is not None
    }


# --- counting


@given(
    st.lists(st.tuples(st.sampled_from(IDS), st.integers(-5, 5))),
    st.integers(1, 4),
    st.sampled_from([np.uint64(2), np.uint64(1 << 63)]),
)
def test_counts_are_those_of_a_counter_however_the_events_are_split(events, n_parts, n_hashes):
    parts = []
    for part in range(n_parts):
        mine = events[part::n_parts]
        ids = pa.array([id_ for id_, _ in mine], pa.large_string()).dictionary_encode()
        times = np.array([time for _, time in mine], np.int64)
        parts.append(count_codes(ids.dictionary, ids.indices.to_numpy(), times))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary_module, "fingerprints", lambda ids: fingerprints(ids) % n_hashes)
        merged = merge_counts(parts)
    assert merged.schema == COUNTS_SCHEMA
    got = {row["id"]: (row["count"], row["last_seen"]) for row in merged.to_pylist()}
    counts = Counter(id_ for id_, _ in events)
    assert len(merged) == len(got)
    assert got == {id_: (n, max(t for one, t in events if one == id_)) for id_, n in counts.items()}


# --- the first vocabulary


def test_the_most_frequent_come_first_then_the_order_of_ids():
    seen = {"b": (2, 1), "a": (2, 1), "c": (9, 1), "rare": (1, 1)}
    config = VocabularyConfig(min_count=2)
    keep = pa.array(["z", "a"])
    vocabulary, diff = grow(None, counted(seen), config, 5 * DAY, keep)
    assert vocabulary.names_of_rows() == ["", "c", "a", "b", "z"]
    assert vocabulary.row_counts.tolist() == [1, 9, 2, 2, 0]
    assert vocabulary.last_seen.tolist() == [DAY, 5 * DAY, DAY, 5 * DAY]
    assert vocabulary.generation.tolist() == [0, 0, 0, 0]
    assert vocabulary.has_id().tolist() == [False, True, True, True, True]
    assert vocabulary.rows(["c", "rare", "z", "?"]).tolist() == [1, 0, 4, 0]
    assert diff == {
        "new": 4,
        "kept": 0,
        "evicted": 0,
        "recycled": 0,
        "below_min_count": 1,
        "below_min_count_events": 1,
        "out_of_date": 0,
        "rows_before": 0,
        "rows_after": 5,
        "unknown_train_share": 1 / 14,
        "unknown_eval_share": 0.0,
        "examples": {
            "new": ["c", "a", "b", "z"],
            "evicted": [],
            "below_min_count": ["rare"],
            "out_of_date": [],
        },
    }


def test_hash_rows_represent_unknown_ids_and_have_their_counts():
    config = VocabularyConfig(min_count=2, hash_buckets=3)
    rare = {f"r{n}": (1, 1) for n in range(20)}
    vocabulary, _ = grow(None, counted({"a": (5, 1), **rare}), config, DAY)
    assert vocabulary.first_own_row == 4
    assert vocabulary.rows(["a"]).tolist() == [4]
    # FarmHash: Fingerprint64("abc") = 2640714258260161385, which is 2 modulo 3.
    assert vocabulary.rows(["abc"]).tolist() == [1 + 2640714258260161385 % 3]
    rows = vocabulary.rows(list(rare))
    assert set(rows.tolist()) == {1, 2, 3}
    assert vocabulary.row_counts[:4].tolist() == [0, *np.bincount(rows, minlength=4)[1:]]
    assert vocabulary.rows(pa.array(["a", None])).tolist() == [4, 0]


# --- growing


def test_ids_stay_new_ones_fill_free_rows_and_old_ones_go():
    config = VocabularyConfig(evict_after_days=30)
    first, _ = grow(None, counted({"a": (9, 10), "b": (5, 1), "c": (3, 10)}), config, 11 * DAY)
    assert row_of(first) == {"a": 1, "b": 2, "c": 3}
    # Day 35: b was not seen for 34 days, c for 25; x and y are new; w is too old to come in.
    seen = {"a": (1, 34), "y": (2, 30), "x": (8, 30), "w": (4, 2)}
    held_out = counted({"a": (3, 40), "x": (3, 40), "never": (6, 40)})
    second, diff = grow(first, counted(seen), config, 35 * DAY, None, [held_out])
    assert row_of(second) == {"a": 1, "x": 2, "c": 3, "y": 4}
    assert second.generation.tolist() == [0, 1, 0, 0]
    assert second.row_counts.tolist() == [4, 1, 8, 0, 2]
    assert (diff["new"], diff["kept"], diff["evicted"], diff["recycled"]) == (2, 2, 1, 1)
    assert (diff["rows_before"], diff["rows_after"], diff["out_of_date"]) == (4, 5, 1)
    assert diff["unknown_train_share"] == 4 / 15
    assert diff["unknown_eval_share"] == 0.5
    assert diff["examples"]["evicted"] == ["b"]
    # b comes back much later, when nothing is free: a row of its own at the end.
    third, _ = grow(second, counted({"b": (1, 40)}), config, 41 * DAY)
    assert row_of(third) == {"a": 1, "x": 2, "y": 4, "b": 3}


def test_other_hash_rows_are_refused():
    first, _ = grow(None, counted({"a": (1, 1)}), VocabularyConfig(hash_buckets=2), DAY)
    with pytest.raises(RecsysError, match=r"R211.*2 hash rows.*'hash_buckets': 3"):
        grow(first, counted({}), VocabularyConfig(hash_buckets=3), DAY)


_RUN = st.tuples(
    st.dictionaries(st.sampled_from(IDS), st.tuples(st.integers(1, 4), st.integers(0, 6))),
    st.lists(st.sampled_from(IDS), max_size=3),
)


@given(
    runs=st.lists(_RUN, max_size=6),
    min_count=st.integers(1, 3),
    hash_buckets=st.integers(0, 3),
    evict_after_days=st.none() | st.integers(1, 9),
    most_rows=st.sampled_from([1, 2, 1 << 19]),
)
def test_over_any_runs_rows_stay_and_counts_add_up(
    runs, min_count, hash_buckets, evict_after_days, most_rows
):
    config = VocabularyConfig(
        min_count=min_count, hash_buckets=hash_buckets, evict_after_days=evict_after_days
    )
    vocabulary = None
    for number, (seen, keep) in enumerate(runs):
        start = 7 * number  # Each run brings a week, and is cut at its end.
        cut = (start + 7) * DAY
        events = {id_: (n, start + day) for id_, (n, day) in seen.items()}
        before, kept = vocabulary, pa.array(keep, pa.string())
        made = grow(before, counted(events), config, cut, kept, [counted(events)])
        with pytest.MonkeyPatch.context() as patch:
            for module, name in (
                (buckets, "_BUCKET_IDS"),
                (buckets, "_RUN_ROWS"),
                (growth, "GROUP_ROWS"),
            ):
                patch.setattr(module, name, most_rows)
            vocabulary, diff = grow(before, counted(events), config, cut, kept, [counted(events)])
        # However many buckets and groups there are, the lines are the same.
        assert (vocabulary.fingerprint(), diff) == (made[0].fingerprint(), made[1])
        check_run(before, vocabulary, diff, events, keep, config)


def check_run(before, vocabulary, diff, events, keep, config):
    rows, old = row_of(vocabulary), {} if before is None else row_of(before)
    limit = vocabulary.cut - (config.evict_after_days or 10**6) * DAY
    assert len(set(rows.values())) == len(rows)
    assert all(row >= vocabulary.first_own_row for row in rows.values())
    seen_at = (
        {}
        if before is None
        else dict(zip(before.own_ids.to_pylist(), before.last_seen, strict=True))
    )
    for id_ in {*old, *rows, *events, *keep}:
        last = max(seen_at.get(id_, -(10**18)), events.get(id_, (0, -(10**12)))[1] * DAY)
        was_often = events.get(id_, (0, 0))[0] >= config.min_count
        lives = id_ in keep or (last >= limit and (id_ in old or was_often))
        assert (id_ in rows) == lives
        if id_ in old and lives:
            assert rows[id_] == old[id_]
            assert generation(vocabulary, rows[id_]) == generation(before, old[id_])
    for id_ in rows.keys() - old.keys():
        if before is not None and rows[id_] < before.n_rows:
            assert generation(vocabulary, rows[id_]) == generation(before, rows[id_]) + 1
    current = vocabulary.ids_of_rows.filter(pa.array(vocabulary.is_current()))
    assert sorted(current.to_pylist()) == sorted(rows.keys() & {*events, *keep})
    for id_, row in rows.items():
        assert vocabulary.row_counts[row] == events.get(id_, (0, 0))[0]
    assert vocabulary.row_counts.sum() == sum(n for n, _ in events.values())
    unknown = [id_ for id_ in events if id_ not in rows]
    expected = np.zeros(vocabulary.first_own_row, np.int64)
    np.add.at(expected, vocabulary.rows(unknown), [events[id_][0] for id_ in unknown])
    assert vocabulary.row_counts[: vocabulary.first_own_row].tolist() == expected.tolist()
    assert diff["new"] == len(rows.keys() - old.keys())
    assert (diff["kept"], diff["evicted"]) == (
        len(old.keys() & rows.keys()),
        len(old.keys() - rows.keys()),
    )
    assert diff["rows_after"] == vocabulary.n_rows
    # A new row is only added if no row is free.
    if before is not None and vocabulary.n_rows > before.n_rows:
        assert None not in vocabulary.own_ids.to_pylist()


def generation(vocabulary, row):
    return int(vocabulary.generation[row - vocabulary.first_own_row])


# --- files


def test_a_vocabulary_comes_back_as_it_was_saved(tmp_path):
    config = VocabularyConfig(min_count=2, hash_buckets=2, evict_after_days=3)
    seen = {"007": (2, 1), "7": (2, 1), "é": (3, 1), "r": (1, 1), " ": (2, 1), "a\nb": (2, 0)}
    vocabulary, _ = grow(None, counted(seen), config, 4 * DAY)
    vocabulary.save(tmp_path / "v.parquet")
    again = Vocabulary.load(tmp_path / "v.parquet")
    assert again.ids_of_rows.equals(vocabulary.ids_of_rows)
    for name in ("row_counts", "last_seen", "generation"):
        assert getattr(again, name).tolist() == getattr(vocabulary, name).tolist()
    assert (again.cut, again.config) == (4 * DAY, config)
    assert again.fingerprint() == vocabulary.fingerprint()


def test_a_file_that_is_no_vocabulary_is_refused(tmp_path):
    pa.parquet.write_table(pa.table({"id": ["a"], "count": [1]}), tmp_path / "v.parquet")
    with pytest.raises(RecsysError, match=r"R212.*v\.parquet"):
        Vocabulary.load(tmp_path / "v.parquet")
    Vocabulary(pa.array(["a"]), np.ones(1)).save(tmp_path / "cut.parquet")
    whole = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    for name in ("cut.parquet", "nowhere.parquet"):
        with pytest.raises(RecsysError, match=f"R212.*{name}"):
            Vocabulary.load(tmp_path / name)


def test_the_fingerprint_is_of_ids_in_the_order_of_their_rows():
    def of(ids, counts=None, **more):
        ids = pa.array(ids, pa.string())
        return Vocabulary(
            ids, np.zeros(len(ids)) if counts is None else counts, **more
        ).fingerprint()

    prints = [
        of(["a", "b"]), of(["b", "a"]), of(["ab", ""]), of(["", "ab"]), of(["a", "b", None]),
        of([]), of(["a", "b"], config=VocabularyConfig(hash_buckets=1)),
    ]  # fmt: skip
    assert len(set(prints)) == len(prints)
    assert of(["a", "b"], np.array([3, 4])) == prints[0]
    sliced = Vocabulary(pa.array(["x", "a", "b"]).slice(1), np.zeros(2))
    assert sliced.fingerprint() == prints[0]


# --- the index


@given(
    st.lists(st.text(max_size=20), unique=True, max_size=40),
    st.lists(st.text(max_size=20) | st.none(), max_size=20),
    st.sampled_from([None, 1, 3]),
)
def test_an_index_finds_what_a_dict_finds_even_where_fingerprints_collide(ids, asked, n_hashes):
    def colliding(texts):
        return np.array([len(t or "") % (n_hashes or 1) for t in texts.to_pylist()], np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        if n_hashes:
            patch.setattr(vocabulary_module, "fingerprints", colliding)
        index = IdIndex(pa.array([*ids, None], pa.large_string()))
        wanted = pa.array([*asked, *ids], pa.large_string())
        place = {id_: n for n, id_ in enumerate(ids)}
        assert index.find(wanted).tolist() == [place.get(id_, -1) for id_ in wanted.to_pylist()]
