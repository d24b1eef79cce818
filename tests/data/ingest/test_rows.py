"""Rows with labels and features of events: the store is what plain Python makes of the rows."""

import filecmp
import math
import random

import numpy as np
import pyarrow as pa
import pytest

from recsys.config import InteractionsConfig, VocabulariesConfig
from recsys.data.encodings import crossed
from recsys.data.event_features import load_event_features
from recsys.data.hashes import hash_buckets
from recsys.data.ingest import event_values
from recsys.data.ingest.event_values import learn_event_features
from recsys.data.ingest.segment_parts import FOLDER, SegmentPart, write_index, write_part
from recsys.data.ingest.store_writer import build_store, make_vocabularies
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary

HOUR, DAY = 3600, 86_400
CUT = 1_700_000_000 // DAY * DAY
LABEL_AFTER = 5 * HOUR
FEATURES = [
    {"name": "device", "column": "d", "kind": "category"},
    {"name": "dwell", "column": "s", "kind": "number", "buckets": 4, "outcome": True},
    {"name": "hour", "column": "t", "kind": "hour"},
    {"name": "gap", "kind": "gap"},
    {"name": "text", "column": "v", "kind": "vector", "width": 2},
    {"name": "both", "kind": "cross", "of": ["device", "hour"], "hash_buckets": 300},
]
SCHEMA = {
    "user_id": pa.string(),
    "item_id": pa.string(),
    "timestamp": pa.int64(),
    "label": pa.int64(),
    "label:like": pa.int8(),
    "label:seen": pa.float32(),
    "rate": pa.float32(),
    "impression": pa.string(),
    "shown_at": pa.int32(),
    "feature:device": pa.string(),
    "feature:dwell": pa.float32(),
    "feature:hour": pa.int64(),
    "feature:text": pa.list_(pa.float32()),
}


def config(has_labels=True):
    labels = {"like": {"column": "like", "values": ["1"]}, "seen": {"column": "seen"}}
    return InteractionsConfig.model_validate(
        {
            "files": "x.csv",
            "columns": {"user": "u", "item": "i", "timestamp": "t"},
            "features": FEATURES,
            **({"labels": labels, "positive": "like"} if has_labels else {}),
        },
        strict=False,
    )


def made_up(seed, n=200, first=CUT - 3 * DAY, end=CUT + DAY):
    """Returns rows in the order of `SCHEMA`; several share a user and a second."""
    chance = random.Random(seed)
    rows = {}
    for _ in range(n):
        user, time = chance.choice("abcdefé"), chance.randrange(first, end, 2 * HOUR)
        item = chance.choice("uvwxyz" if time < CUT else "uvwxyz!")
        like = chance.choice([0, 0, 1, None])
        rows[user, item, time] = (
            *(user, item, time, int(like == 1), like, chance.choice([None, 0.5, 9.0])),
            *map(chance.choice, ([1.0, 0.25], [None, "p", "q"], [None, 3])),
            *map(chance.choice, (["web", "app", "tv", None], [None, 1.0, 2.5, 3.0, 7.0])),
            *(time, chance.choice([None, [0.5, -2.0]])),
        )
    return list(rows.values())


def make(folder, rows, n_buckets=1, width=None, most=50, has_labels=True, previous=None):
    """Writes rows as segments of `width` days, None: not split yet; returns the store."""
    names = [n for n in SCHEMA if has_labels or not n.startswith(("label:", "rate", "imp", "sho"))]
    keyed = {}
    for row in rows:
        days = 0 if width is None else row[2] // (width * DAY)
        keyed.setdefault((days, hash_buckets(pa.array([row[0]]), n_buckets)[0]), []).append(row)
    parts = []
    for (days, bucket), some in sorted(keyed.items()):
        columns = dict(zip(SCHEMA, zip(*some, strict=True), strict=True))
        table = pa.table([pa.array(columns[name], SCHEMA[name]) for name in names], names)
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        facts = write_part(folder / FOLDER, f"{days:05d}-{bucket}", table, with_examples=False)
        split = "train" if some[0][2] < CUT else "eval"
        split = None if width is None else split
        if facts["events"]:
            parts.append(SegmentPart(split, folder / FOLDER / facts["name"], facts["events"]))
    write_index(folder, parts, [], CUT)
    out = folder / "vocabulary"
    out.mkdir()
    before = previous and previous / "vocabulary"
    make_vocabularies(folder, CUT, {}, before, out, VocabulariesConfig())
    earlier = previous and previous / "event_features"
    learn_event_features(folder, config(has_labels), earlier, folder / "event_features")
    learned = load_event_features(folder / "event_features")
    build_store(
        folder, out, CUT, folder / "store", features=learned, label_after_s=LABEL_AFTER, most=most
    )
    return InteractionStore.open(folder / "store", verify=True)


def reference(rows, part, newest):
    """Returns what `stored` returns, in plain Python from the rows of both parts."""
    devices = sorted(
        {row[9] for row in rows if row[2] < CUT and row[9]},
        key=lambda d: (-sum(r[9] == d for r in rows if r[2] < CUT), d),
    )
    numbers = sorted(row[10] for row in rows if row[2] < CUT and row[10] is not None)
    bounds = [numbers[len(numbers) * k // 4] for k in (1, 2, 3)]
    out = []
    for row in rows:
        user, item, time, positive, like, seen, rate, impression, position, device, dwell = row[:11]
        if (time < CUT) != (part == "train"):
            continue
        is_known = time <= newest - LABEL_AFTER
        history = [r[2] for r in rows if r[0] == user and r[3] and r[2] < time]
        gap = np.float32((time - max(history)) / HOUR) if history else None
        tokens = (0 if device is None else 1 + devices.index(device), 1 + time % DAY // HOUR)
        derived = (
            tokens[0],
            0 if dwell is None else 1 + sum(dwell >= bound for bound in bounds),
            tokens[1],
            0 if gap is None else math.floor(4 * math.log2(gap)) + 34,
            [*(row[12] or [0.0, 0.0]), float(row[12] is not None)],
            int(crossed(np.array([tokens]), 300)[0, 0]),
        )
        labels = (
            -1 if like is None or not is_known else like,
            "nan" if seen is None or not is_known else str(seen),
        )
        in_log = [t for t in history if (t < CUT) == (part == "train")]
        shown = [
            (r[2], r[1] if r[2] < CUT or r[1] != "!" else "")
            for r in rows
            if r[0] == user and r[7] == impression and (r[2] < CUT) == (part == "train")
        ]
        which = min(shown) if impression else None
        rest = (len(in_log), *labels, rate, -1 if position is None else position, which, *derived)
        out.append((bool(positive), (user, "" if item == "!" else item, time), rest))
    return out


def stored(store, part, item_ids):
    """Returns the rows of a store: whether in the log, user, item and time, and the rest.

    The rest has the earliest row of the impression, for its number.
    """
    log, rows = getattr(store, part), getattr(store, f"{part}_rows")
    users = rows.user_index(np.arange(len(rows))).tolist()
    ids = getattr(store, f"{part}_users").ids.to_pylist()
    items = [item_ids[row] for row in rows.item_row]
    first, out = {}, []
    for n, user in enumerate(users):
        key = user, int(rows.impression[n])
        first[key] = min(first.get(key, (CUT * 2, "")), (int(rows.timestamp[n]), items[n]))
    for n, user in enumerate(users):
        number = int(rows.impression[n])
        event = int(rows.history_end[n]) - int(log.offsets[user])
        values = [rows.features[feature["name"]][n].tolist() for feature in FEATURES]
        features = [value[0] if len(value) == 1 else value for value in values]
        labels = int(rows.labels["like"][n]), str(rows.labels["seen"][n])
        shown = first[user, number] if number else None
        row = (event, *labels, float(rows.rate[n]), int(rows.position[n]), shown, *features)
        mine = slice(int(log.offsets[user]), int(log.offsets[user + 1]))
        events = zip(log.item_row[mine].tolist(), log.timestamp[mine].tolist(), strict=True)
        is_there = (int(rows.item_row[n]), int(rows.timestamp[n])) in list(events)
        out.append((is_there, (ids[user], items[n], int(rows.timestamp[n])), row))
    return out


@pytest.mark.parametrize(
    ("n_buckets", "width", "most"), [(1, None, 1000), (3, None, 30), (2, 1, 50)]
)
def test_rows_and_positives_are_those_of_plain_python(tmp_path, n_buckets, width, most):
    rows = made_up(n_buckets)
    for end in (CUT, max(row[2] for row in rows)):
        for late in (0, 1):  # The newest second with known labels, and the one after it.
            time = end - LABEL_AFTER + late
            rows.append(("a", "u", time, 0, 0, 9.0, *rows[0][6:11], time, None))
    store = make(tmp_path, rows, n_buckets, width, most)
    items = Vocabulary.load(tmp_path / "vocabulary" / "items.parquet")
    trained = [row for row in rows if row[2] < CUT]
    assert set(items.own_ids.to_pylist()) == {row[1] for row in trained}
    assert items.row_counts.sum() == sum(row[3] for row in trained)
    for part, newest in (("train", CUT), ("eval", max(row[2] for row in rows))):
        expected = reference(rows, part, newest)
        got = stored(store, part, items.names_of_rows())
        assert sorted(map(repr, got)) == sorted(map(repr, expected))
        log = getattr(store, part)
        assert len(log) == sum(is_positive for is_positive, *_ in expected)
        is_positive = np.array([row[0] for row in got])
        for name, column in getattr(store, f"{part}_rows").features.items():
            assert np.array_equal(np.asarray(column)[is_positive], np.asarray(log.features[name]))


def test_nothing_of_training_depends_on_rows_after_the_cut(tmp_path):
    before = [row for row in made_up(0) if row[2] < CUT]
    after = made_up(1, 80, CUT)
    # Tokens, numbers, counts and times that would change all that is learned, if they were seen.
    other = [
        (*r[:2], r[2] + HOUR, 1 - r[3], 1, 7.0, *r[6:9], "watch", 1e6 * r[2], r[2], [3.0, 4.0])
        for r in made_up(2, 300, CUT)
    ]
    for name, rows in (("one", after), ("two", other)):
        make(tmp_path / name, [*before, *rows], 2)
    for part in ("store/train", "event_features", "vocabulary"):
        folders = [tmp_path / name / part for name in ("one", "two")]
        names = [
            sorted(p.relative_to(f) for p in f.rglob("*") if p.is_file() and p.name != "diff.json")
            for f in folders
        ]
        assert names[0] == names[1] != []
        assert not filecmp.cmpfiles(*folders, names[0], shallow=False)[1]
    # The test would see a leak: what is learned from all rows is another thing.
    leaky = tmp_path / "leaky"
    make(leaky, [(*row[:2], row[2] - 9 * DAY, *row[3:]) for row in [*before, *other]], 2)
    for kept, leaked in zip(
        *(load_event_features(f / "event_features")[:2] for f in (tmp_path / "one", leaky)),
        strict=True,
    ):
        assert not kept.is_same(leaked)


def test_numbers_are_learned_from_the_same_sample_however_rows_are_divided(tmp_path, monkeypatch):
    monkeypatch.setattr(event_values, "SAMPLE", 20)
    learned = []
    for n_buckets, width in ((1, None), (4, None), (2, 1)):
        folder = tmp_path / f"{n_buckets}-{width}"
        make(folder, made_up(5), n_buckets, width, has_labels=False)
        learned.append(load_event_features(folder / "event_features")[1])
    assert all(one.is_same(learned[0]) for one in learned)


def test_tokens_and_ids_keep_their_rows_in_the_next_run(tmp_path):
    rows = made_up(3)
    make(tmp_path / "one", rows)
    more = [(*row[:9], "watch", *row[10:]) for row in rows] + [("new", *row[1:]) for row in rows]
    make(tmp_path / "two", more, previous=tmp_path / "one")
    names = [load_event_features(tmp_path / n / "event_features")[0] for n in ("one", "two")]
    tokens = [one.feature.token_names(one.learned) for one in names]
    assert tokens[1] == [*tokens[0], "watch"]
    users = [
        Vocabulary.load(tmp_path / n / "vocabulary" / "users.parquet").names_of_rows()
        for n in ("one", "two")
    ]
    assert users[1] == [*users[0], "new"]
