"""Labels, impressions and features of events in a row, from the config to the merged table."""

import itertools
import json

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest
from hypothesis import given
from reading import read_interactions

import recsys.data.event_features  # noqa: F401 - registers the kinds
from recsys.config import InteractionsConfig
from recsys.data.dead_letters import count_reasons
from recsys.data.interactions import BAD_IMPRESSION, drop_duplicates
from recsys.data.labels import BAD_POSITION, bad_label
from recsys.data.sources.nested import NO_FIELDS, UNEQUAL

NOW = 1_800_000_000
TIME = 1_600_000_000

LABELS = {
    "click": {"column": "event", "values": ["click", "buy"]},
    "buy": {"column": "event", "values": ["buy"], "given": "click"},
    "watched": {"column": "seconds", "given": "buy"},
}
COLUMNS = {"user": "u", "item": "i", "timestamp": "t"}


def config_of(columns=COLUMNS, files="f.csv", **more):
    raw = {"files": str(files), "columns": dict(columns), **more}
    return InteractionsConfig.model_validate(raw, strict=False)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"labels": LABELS}, "positive must name the label that retrieval learns"),
        ({"labels": LABELS, "positive": "like"}, "must be a label .buy, click, watched."),
        ({"labels": {"a": {"column": "x", "at_least": 1, "values": ["1"]}}}, "not both"),
        ({"labels": {"a": {"column": "x", "at_least": 1, "given": "b"}}}, "another label .a."),
        (
            {
                "labels": {"a": {"column": "x"}, "b": {"column": "y", "given": "a"}},
                "positive": "a",
            },
            "'a' is an amount",
        ),
        (
            {
                "labels": {
                    "a": {"column": "x", "at_least": 1, "given": "b"},
                    "b": {"column": "y", "at_least": 1, "given": "a"},
                },
                "positive": "a",
            },
            "back to itself.*a, b",
        ),
        (
            {
                "labels": LABELS,
                "positive": "buy",
                "positive_events": ["buy"],
                "columns": {**COLUMNS, "event": "event"},
            },
            "exclude each other",
        ),
        ({"label_after": "1d"}, "label_after needs labels"),
        ({"columns": {**COLUMNS, "impression": "x"}}, "columns.impression needs labels"),
        (
            {
                "labels": LABELS,
                "positive": "buy",
                "features": [{"name": "kind", "column": "event", "kind": "category"}],
            },
            "column of label 'buy'.*outcome: true",
        ),
        (
            {
                "columns": {"user": "u", "item": "i"},
                "features": [{"name": "gap", "kind": "gap"}],
            },
            "needs columns.timestamp",
        ),
        (
            {
                "columns": {**COLUMNS, "item": "list.item"},
                "explode": {
                    "column": "list",
                    "separator": " ",
                    "fields": {"separator": "-", "names": ["id", "clicked"]},
                },
            },
            "list.id, list.clicked; received 'list.item'",
        ),
        (
            {"columns": {**COLUMNS, "item": "x"}, "explode": {"column": "x", "parallel": ["y"]}},
            "'y' isn't read",
        ),
    ],
)
def test_a_config_that_contradicts_itself_says_how_to_mend_it(more, sentence):
    with pytest.raises(pydantic.ValidationError, match=sentence):
        config_of(**more)


# --- labels and the merging of rows, against dictionaries

_ROW = st.fixed_dictionaries(
    {
        "u": st.sampled_from("ab"),
        "i": st.sampled_from("xy"),
        "t": st.sampled_from([TIME, TIME + 1, TIME + 86_400]).map(str),
        "imp": st.sampled_from(["", "1", "2", "x" * 1025]),
        "event": st.sampled_from(["", " ", "view", "click", "buy"]),
        "seconds": st.sampled_from(["", "0", "2.5", "-1", "3e1", "?"]),
        "pos": st.sampled_from(["", "0", "7", "1.5", "-1"]),
    }
)
_CASES = {
    "columns": {**COLUMNS, "impression": "imp", "position": "pos"},
    "labels": LABELS,
    "sampled": {"column": "event", "rates": {"view": 0.25, "click": 0.5}},
    "features": [{"name": "what", "column": "event", "kind": "category", "outcome": True}],
}


def expected(rows, positive):
    """Returns the events that the rows are, from the rules one row at a time."""
    events = {}
    for place, row in enumerate(rows):
        if row["seconds"] == "?" or row["pos"] in ("1.5", "-1") or len(row["imp"]) > 1024:
            continue
        what = row["event"].strip() or None
        event = {
            "t": int(row["t"]),
            "place": place,
            "click": None if what is None else int(what != "view"),
            "buy": None if what is None else int(what == "buy"),
            "watched": float(row["seconds"]) if row["seconds"] else None,
            "rate": {"view": 0.25, "click": 0.5}.get(what, 1.0),
            "pos": int(row["pos"]) if row["pos"] else None,
            "what": what,
        }
        key = (row["u"], row["i"], row["imp"] or f"at {row['t']}")
        events.setdefault(key, []).append(event)
    found = []
    for (user, item, impression), same in events.items():
        first = min(same, key=lambda event: (event["t"], event["place"]))
        if impression.startswith("at"):
            impression, same = None, [first]
        click, buy, watched = (
            max((e[n] for e in same if e[n] is not None), default=None) for n in LABELS
        )
        buy = buy if click == 1 else None
        watched = watched if buy == 1 else None
        label = int(({"click": click, "buy": buy, "watched": watched}[positive] or 0) > 0)
        rate = max(event["rate"] for event in same)
        rest = (rate, first["pos"], first["what"], impression)
        found.append((user, item, first["t"], label, click, buy, watched, *rest))
    return sorted(found, key=str)


def events_in(table):
    names = ["user_id", "item_id", "timestamp", "label", "label:click", "label:buy"]
    names += ["label:watched", "rate", "shown_at", "feature:what", "impression"]
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=str)


@given(st.lists(_ROW, min_size=1, max_size=30), st.sampled_from([*LABELS]), st.integers(0, 2**30))
def test_rows_of_an_impression_are_one_event_of_maxima(tmp_path_factory, rows, positive, parts):
    path = tmp_path_factory.mktemp("rows") / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_interactions(config_of(files=path, positive=positive, **_CASES), NOW)
    good, n_dropped = drop_duplicates(found.good)
    assert events_in(good) == expected(rows, positive)
    assert len(rows) == good.num_rows + len(found.letters) + n_dropped
    reasons = {bad_label("watched"), BAD_POSITION, BAD_IMPRESSION}
    assert {reason for _, reason in found.reasons()} <= reasons
    # The rows of several spans are merged within each span first.
    is_first = np.array([parts >> n & 1 for n in range(found.good.num_rows)], bool)
    spans = [drop_duplicates(found.good.filter(mask))[0] for mask in (is_first, ~is_first)]
    assert drop_duplicates(pa.concat_tables(spans))[0].equals(good)


@pytest.mark.parametrize(
    ("label", "values", "known"),
    [
        ({"at_least": 4.1}, ["4.1", "4.0", "", " ", "nan?"], [1, 0, None, None, "bad"]),
        ({"at_least": 1}, [True, False, None], [1, 0, None]),
        ({"at_least": 2}, [2.0, float("nan"), float("inf"), None], [1, None, "bad", None]),
        ({"values": ["1", "yes"]}, ["1", "0", "", "yes", "YES"], [1, 0, None, 1, 0]),
        ({"values": ["1"]}, [1.0, 0.0, None], [1, 0, None]),
        ({"values": ["true"]}, [True, False], [1, 0]),
        ({}, ["1.5", "-2", "", "1,5"], [1.5, -2.0, None, "bad"]),
    ],
)
def test_a_label_is_known_unless_its_value_is_empty(tmp_path, label, values, known):
    n = len(values)
    table = pa.table({"u": ["u"] * n, "i": [str(at) for at in range(n)], "t": [TIME] * n})
    pq.write_table(table.append_column("x", pa.array(values)), tmp_path / "f.parquet")
    labels = {"like": {"column": "x", **label}}
    found = read_interactions(config_of(files=tmp_path / "f.parquet", labels=labels), NOW)
    assert found.good["label:like"].to_pylist() == [value for value in known if value != "bad"]
    bad = [(at, bad_label("like")) for at, value in enumerate(known, 1) if value == "bad"]
    assert found.reasons() == bad
    are_positive = [int((value or 0) > 0) for value in known if value != "bad"]
    assert found.good["label"].to_pylist() == are_positive


# --- lists of what was shown


def write_fields(folder, shown):
    rows = [f"u{n},{TIME},{' '.join(f'{i}-{c}' for i, c in row)}" for n, row in enumerate(shown)]
    (folder / "f.csv").write_text("\n".join(["u,t,shown", *rows]) + "\n")
    fields = {"separator": "-", "names": ["item", "clicked"]}
    explode = {"column": "shown", "separator": " ", "fields": fields}
    return folder / "f.csv", explode, "shown.item", "shown.clicked"


def write_parallel_text(folder, shown):
    cells = [("|".join(i for i, _ in row), "|".join(c for _, c in row)) for row in shown]
    rows = [f"u{n},{TIME},{items},{labels}" for n, (items, labels) in enumerate(cells)]
    (folder / "f.csv").write_text("\n".join(["u,t,items,labels", *rows]) + "\n")
    explode = {"column": "items", "separator": "|", "parallel": ["labels"]}
    return folder / "f.csv", explode, "items", "labels"


def write_parallel_lists(folder, shown):
    table = {
        "u": [f"u{n}" for n in range(len(shown))],
        "t": pa.array([TIME] * len(shown), pa.int64()),
        "items": pa.array([[i for i, _ in row] for row in shown], pa.list_(pa.string())),
        "labels": pa.array([[c for _, c in row] for row in shown], pa.list_(pa.string())),
    }
    pq.write_table(pa.table(table), folder / "f.parquet")
    return folder / "f.parquet", {"column": "items", "parallel": ["labels"]}, "items", "labels"


_SHOWN = st.lists(st.tuples(st.sampled_from(["N1", "N2", "N3"]), st.sampled_from("01")), max_size=5)


@pytest.mark.parametrize("write", [write_fields, write_parallel_text, write_parallel_lists])
@given(shown=st.lists(_SHOWN, min_size=1, max_size=6))
def test_a_list_of_what_was_shown_is_one_impression(tmp_path_factory, write, shown):
    path, explode, item, clicked = write(tmp_path_factory.mktemp("lists"), shown)
    config = config_of(
        {"user": "u", "item": item, "timestamp": "t"},
        path,
        explode=explode,
        labels={"click": {"column": clicked, "values": ["1"]}},
    )
    if not any(shown) and write is not write_parallel_lists:
        return
    found = read_interactions(config, NOW)
    good, n_dropped = drop_duplicates(found.good)
    assert found.n_empty == sum(not row for row in shown)
    events = {}
    for n, row in enumerate(shown):
        for at, (item, label) in enumerate(row):
            place, most = events.get((f"u{n}", item), (at, 0))
            events[f"u{n}", item] = place, max(most, int(label))
    names = ("user_id", "item_id", "shown_at", "label:click")
    rows = zip(*(good[name].to_pylist() for name in names), strict=True)
    assert {(user, item): tuple(rest) for user, item, *rest in rows} == events
    assert n_dropped == sum(map(len, shown)) - len(events)
    of_user = set(zip(good["user_id"].to_pylist(), good["impression"].to_pylist(), strict=True))
    assert len(of_user) == len({user for user, _ in of_user}) == len({i for _, i in of_user})


def test_the_impression_of_a_row_does_not_depend_on_the_files(tmp_path):
    rows = [f"u,{TIME + at},N1-0 N{at}-1\n" for at in range(4)]
    for cuts in ([0, 4], [0, 1, 4]):
        folder = tmp_path / str(len(cuts))
        folder.mkdir()
        for n, (start, end) in enumerate(itertools.pairwise(cuts)):
            (folder / f"{n}.csv").write_text("u,t,shown\n" + "".join(rows[start:end]))
    fields = {"separator": "-", "names": ["item", "clicked"]}
    ids = [
        read_interactions(
            config_of(
                {"user": "u", "item": "shown.item", "timestamp": "t"},
                tmp_path / folder / "*.csv",
                explode={"column": "shown", "separator": " ", "fields": fields},
                labels={"click": {"column": "shown.clicked", "values": ["1"]}},
            ),
            NOW,
            piece_bytes,
        ).good["impression"]
        for folder, piece_bytes in (("2", 1 << 26), ("3", 1 << 26), ("2", 16))
    ]
    assert len(set(ids[0].to_pylist())) == 4
    assert ids[0].to_pylist() == ids[1].to_pylist() == ids[2].to_pylist()


def test_lists_that_do_not_fit_are_dead_letters_that_say_why(tmp_path):
    text = f"u,t,items,labels\na,{TIME},x|y|z,1|0\nb,{TIME},x|y,|1\nc,{TIME},x|y,1|maybe\n"
    (tmp_path / "f.csv").write_text(text)
    config = config_of(
        {"user": "u", "item": "items", "timestamp": "t"},
        tmp_path / "f.csv",
        explode={"column": "items", "separator": "|", "parallel": ["labels"]},
        labels={"like": {"column": "labels", "at_least": 1}},
    )
    found = read_interactions(config, NOW)
    assert found.reasons() == [(2, f"{UNEQUAL} (items 3, labels 2)"), (4, bad_label("like"))]
    assert found.good["label:like"].to_pylist() == [None, 1, 1]
    letters = pa.RecordBatch.from_pylist(found.letters)
    assert count_reasons(letters) == {UNEQUAL: 1, bad_label("like"): 1}


def test_behaviours_of_mind_are_impressions_with_clicks(tmp_path):
    """Wu et al., MIND, ACL 2020: impression id, user, time, history, and what was shown."""
    rows = [
        "1\tU1\t11/15/2019 10:22:32 AM\tN7 N8\tN1-1 N2-0 N3-0",
        "2\tU2\t11/15/2019 11:00:00 PM\t\tN2-1 N5",
    ]
    (tmp_path / "behaviors.tsv").write_text("\n".join(rows) + "\n")
    config = config_of(
        {"user": "user", "item": "shown.item", "timestamp": "time", "impression": "id"},
        tmp_path / "behaviors.tsv",
        csv={
            "delimiter": "\t",
            "quote": None,
            "names": ["id", "user", "time", "history", "shown"],
        },
        timestamp_format="%m/%d/%Y %I:%M:%S %p",
        explode={
            "column": "shown",
            "separator": " ",
            "fields": {"separator": "-", "names": ["item", "clicked"]},
        },
        labels={"click": {"column": "shown.clicked", "values": ["1"]}},
    )
    found = read_interactions(config, NOW)
    names = ("user_id", "item_id", "impression", "shown_at", "label:click", "label")
    assert list(zip(*(found.good[name].to_pylist() for name in names), strict=True)) == [
        ("U1", "N1", "1", 0, 1, 1),
        ("U1", "N2", "1", 1, 0, 0),
        ("U1", "N3", "1", 2, 0, 0),
        ("U2", "N2", "2", 0, 1, 1),
    ]
    assert found.reasons() == [(2, NO_FIELDS)]


def test_logs_of_criteo_are_wide_rows_with_labels_and_features(tmp_path):
    """Diemert et al., Attribution Modeling, AdKDD 2017: clicks, conversions, costs, categories."""
    text = "timestamp\tuid\tcampaign\tconversion\tclick\tcost\tcat1\tcat2\n"
    text += f"{TIME}\t1\t9\t1\t1\t0.5\t5824233\t\n{TIME}\t2\t9\t0\t0\t\t5824233\t7\n"
    (tmp_path / "log.tsv").write_text(text)
    config = config_of(
        {"user": "uid", "item": "campaign", "timestamp": "timestamp"},
        tmp_path / "log.tsv",
        csv={"delimiter": "\t"},
        labels={
            "click": {"column": "click", "values": ["1"]},
            "sale": {"column": "conversion", "at_least": 1, "given": "click"},
        },
        positive="click",
        sampled={"column": "click", "rates": {"0": 0.1}},
        features=[
            {"name": "cat1", "column": "cat1", "kind": "category"},
            {"name": "cat2", "column": "cat2", "kind": "category"},
            {"name": "cost", "column": "cost", "kind": "number"},
            {"name": "hour", "column": "timestamp", "kind": "hour"},
        ],
    )
    good = read_interactions(config, NOW).good.drop_columns(["position", "user_id", "item_id"])
    assert good.to_pydict() == {
        "timestamp": [TIME, TIME],
        "label": [1, 0],
        "label:click": [1, 0],
        "label:sale": [1, None],
        "rate": [1.0, pytest.approx(0.1)],
        "feature:cat1": ["5824233", "5824233"],
        "feature:cat2": [None, "7"],
        "feature:cost": [0.5, None],
        "feature:hour": [TIME, TIME],
    }


def test_a_feature_is_missing_if_its_value_is_empty_and_rejected_if_it_is_wrong(tmp_path):
    rows = ["1.5,1 2,10", "?,1 2,10", ",1,10", ",,", "inf,1 2,10", ',"[3, 4]",soon', ",1 nan,"]
    text = "u,i,t,n,v,w\n" + "".join(f"u,i{at},{TIME},{row}\n" for at, row in enumerate(rows))
    (tmp_path / "f.csv").write_text(text)
    features = [
        {"name": "n", "column": "n", "kind": "number"},
        {"name": "v", "column": "v", "kind": "vector", "width": 2},
        {"name": "w", "column": "w", "kind": "hour"},
    ]
    found = read_interactions(config_of(files=tmp_path / "f.csv", features=features), NOW)
    assert found.reasons() == [
        (3, "n is no number"),
        (4, "v has 1 number, not 2"),
        (6, "n is no number"),
        (7, "w is no time"),
        (8, "v holds a value that is no finite number"),
    ]
    good = [found.good[f"feature:{name}"].to_pylist() for name in "nvw"]
    assert good == [[1.5, None], [[1.0, 2.0], None], [10, None]]
    vectors = pa.array([[1, 2], [1], None, [None, 3], []], pa.list_(pa.float64()))
    columns = {"u": ["u"] * 5, "i": [*"abcde"], "t": [TIME] * 5, "n": [1.0] * 5, "w": [0] * 5}
    pq.write_table(pa.table({**columns, "v": vectors}), tmp_path / "f.parquet")
    found = read_interactions(config_of(files=tmp_path / "f.parquet", features=features), NOW)
    assert found.good["feature:v"].to_pylist() == [[1.0, 2.0], None, None]
    assert len(found.letters) == 2
