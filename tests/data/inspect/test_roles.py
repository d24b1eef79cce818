"""`recsys check`: labels, weights, thresholds and orders that values suggest."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checking import columns, found, grouped
from commands import run_main

from recsys.config.load import load_config

START = 1_600_000_000


pytestmark = pytest.mark.usefixtures("here")


def written():
    return load_config("out.yaml").data


def write(name, header, rows):
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    Path(name).write_text("\n".join(lines) + "\n")


def events(n=600):
    """Returns user, item and time of events of many days."""
    return [(n_ % 37, n_ * 7 % 53, START + 5000 * n_) for n_ in range(n)]


def write_with(name, column, values):
    rows = [(*event, value) for event, value in zip(events(len(values)), values, strict=True)]
    write(name, f"user_id,item_id,timestamp,{column}", rows)


# --- labels


def label(column, **rule):
    return {"column": column, "at_least": None, "values": [], "given": None} | rule


@pytest.mark.parametrize("name", ["label", "click", "is_click", "liked", "target", "isPurchased"])
def test_a_column_of_zeros_and_ones_says_what_a_positive_is(capsys, name):
    write_with("f.csv", name, [int(n % 3 == 0) for n in range(600)])
    result = found(capsys, "f.csv")
    assert [*result["labels"].values()] == [label(name, at_least=1.0)]
    assert (result["good"], result["positives"]) == (600, 200)
    assert written().interactions.positive_label == result["positive"]


def test_labels_of_minus_one_and_few_grades_have_a_threshold(capsys):
    write_with("f.csv", "label", [(-1, 1)[n % 2] for n in range(600)])
    assert found(capsys, "f.csv")["positives"] == 300
    write_with("f.csv", "relevance", [n % 5 for n in range(600)])
    result = found(capsys, "f.csv")
    assert result["positives"] == 240
    assert result["labels"] == {"relevance": label("relevance", at_least=3.0)}


@pytest.mark.parametrize(("yes", "no"), [("True", "False"), ("yes", "no"), ("Y", "N")])
def test_labels_that_are_words_have_the_value_that_means_yes(capsys, yes, no):
    write_with("f.csv", "clicked", [(yes, no, no)[n % 3] for n in range(600)])
    result = found(capsys, "f.csv")
    assert result["labels"] == {"clicked": label("clicked", values=[yes])}
    assert result["positives"] == 200


def test_booleans_of_parquet_are_labels(here, capsys):
    user, item, time = zip(*events(), strict=True)
    is_liked = [n % 4 == 0 for n in range(600)]
    table = {"user": user, "item": item, "ts": time, "liked": is_liked}
    pq.write_table(pa.table(table), "f.parquet")
    result = found(capsys, "f.parquet")
    assert (result["positive"], result["positives"]) == ("liked", 150)


def test_of_two_labels_none_is_chosen_in_silence_and_one_is_given_another(capsys):
    rows = [(*event, n % 2, n % 6 // 5, n % 40) for n, event in enumerate(events())]
    write("f.csv", "user_id,item_id,timestamp,click,purchase,dwell_time", rows)
    result = found(capsys, "f.csv")
    assert result["config"] is None
    assert "click and purchase" in result["undecided"][0]
    assert result["try"] == "recsys check f.csv --map positive=click"
    result = found(capsys, "f.csv", "--map", "positive=purchase")
    assert result["positives"] == 100
    assert result["labels"] == {
        "click": label("click", at_least=1.0),
        "purchase": label("purchase", at_least=1.0, given="click"),
        "dwell_time": label("dwell_time"),
    }
    assert run_main("check", "f.csv", "--map", "positive=sale") == 2
    result = found(capsys, "f.csv", "--map", "rating=purchase")
    assert (result["labels"], result["positives"]) == ({}, 100)
    result = found(capsys, "f.csv", "--map", "label=none")
    assert (result["labels"], result["positives"]) == ({}, 600)


def test_kinds_of_events_along_a_funnel_are_labels(capsys):
    kinds = ["view"] * 3 + ["cart", "purchase", "remove_from_cart"]
    write_with("f.csv", "event_type", [kinds[n % 6] for n in range(600)])
    result = found(capsys, "f.csv")
    assert result["labels"] == {
        "view": label("event_type", values=["view", "cart", "purchase"]),
        "cart": label("event_type", values=["cart", "purchase"]),
        "purchase": label("event_type", values=["purchase"]),
    }
    assert (result["good"], result["positives"]) == (600, 500)
    config = written().interactions
    assert config.positive == "view"
    assert [(f.column, f.outcome) for f in config.features] == [("event_type", True)]
    assert found(capsys, "f.csv", "--map", "positive=cart")["positives"] == 200


def test_kinds_of_a_funnel_need_no_name(capsys):
    kinds = ["pv", "pv", "fav", "buy"]
    rows = [f"u{u},i{i},{n % 30},{kinds[n % 4]},{t}" for n, (u, i, t) in enumerate(events())]
    Path("f.csv").write_text("\n".join(rows) + "\n")
    result = found(capsys, "f.csv", "--map", "user=c1,item=c2")
    assert (columns(result)["event"], [*result["labels"]]) == ("c4", ["pv", "fav", "buy"])


def test_stars_win_over_labels_which_are_named(capsys):
    rows = [(*event, n % 5 + 1, n % 2, "MF"[n % 2]) for n, event in enumerate(events())]
    write("f.csv", "user_id,item_id,timestamp,stars,helpful,gender", rows)
    result = found(capsys, "f.csv")
    assert columns(result)["rating"] == "stars"
    (sentence,) = [one for one in result["remarks"] if "no role" in one]
    assert "helpful (0, 1)" in sentence
    assert "gender (M, F)" in sentence


# --- context and outcomes


def test_context_and_outcomes_are_features(capsys):
    rows = [
        (*event, n % 5 + 1, "ab"[n % 2], n % 30, n * 7 % 90, f"u{n * 13 % 300}", n % 3)
        for n, event in enumerate(events())
    ]
    header = "user_id,item_id,timestamp,rating,device,price,dwell_seconds,page,color"
    write("f.csv", header, rows)
    result = found(capsys, "f.csv")
    assert "color (0, 1, 2)" in next(one for one in result["remarks"] if "no role" in one)
    kinds = {f.column: (f.kind, f.outcome) for f in written().interactions.features}
    assert kinds == {
        "device": ("category", False), "page": ("category", False),
        "price": ("price", True), "dwell_seconds": ("number", True),
    }  # fmt: skip
    result = found(capsys, "f.csv", "--map", "context=color,context=device,outcome=none")
    assert not [one for one in result["remarks"] if "no role" in one]
    features = written().interactions.features
    assert [(f.column, f.outcome) for f in features] == [("color", False), ("device", False)]
    found(
        capsys, "f.csv", "--map", "rating=rating,context=rating,outcome=none"
    )  # It is known afterwards.
    assert [(f.column, f.outcome) for f in written().interactions.features] == [("rating", True)]


# --- weights


def heavy(n, seed=0):
    return np.random.default_rng(seed).lognormal(1.0, 1.5, n).round(1)


@pytest.mark.parametrize(
    ("name", "values", "scale"),
    [
        ("Hours", heavy(600), "log"),
        ("playtime_forever", heavy(600), "log"),
        ("watch_time", heavy(600), "log"),
        ("plays", np.arange(600) % 90 + 1, "log"),
        ("quantity", np.arange(600) % 3 + 1, "linear"),
        ("price", heavy(600), None),
        ("hours", np.arange(600) % 12 / 2, None),
        ("watch_ratio", heavy(600), None),
    ],
)
def test_counts_and_durations_are_weights(capsys, name, values, scale):
    write_with("f.csv", name, values)
    result = found(capsys, "f.csv")
    assert columns(result).get("weight") == (name if scale else None)
    assert written().interactions.weight_scale == (scale or "linear")


# --- thresholds


@pytest.mark.parametrize(
    ("values", "least", "n_positive"),
    [
        # One outlier: of the rest the largest third.
        ([*range(1, 600), 50_000], 420.0, 181),
        ([1] * 500 + [*range(2, 101), 50_000], 2.0, 100),
        # Scales, as they are used: even where high values are rare.
        ([n % 5 + 1 for n in range(600)], 4.0, 240),
        ([0] * 594 + [1] * 6, 1.0, 6),
        ([1, 2, 3] * 199 + [4, 5, 5], 4.0, 3),
        ([n / 60 for n in range(600)], 6.988, 180),
        ([*[1, 2, 3, 4, 5] * 119, 1, 1, 1, 1, 1000], 4.0, 239),
    ],
    ids=["outlier", "mostly-ones", "stars", "rare-label", "rare-stars", "uniform", "few-outlier"],
)
def test_the_threshold_of_ratings_follows_their_scale_or_their_quantile(
    capsys, values, least, n_positive
):
    write_with("f.csv", "score", values)
    result = found(capsys, "f.csv")
    assert written().interactions.positive_at_least == least
    assert result["positives"] == n_positive


@pytest.mark.parametrize(
    ("n_ones", "is_said"), [(0, False), (5, True), (6, False), (594, False), (595, True)]
)
def test_positives_of_nearly_no_or_nearly_all_rows_are_said(capsys, n_ones, is_said):
    write_with("f.csv", "label", [int(n < n_ones) for n in range(600)])
    result = found(capsys, "f.csv")
    said = [one for one in result["remarks"] if "are positives by" in one]
    assert bool(said) == is_said
    if is_said:
        assert f"{n_ones} of 600" in said[0]
        assert "label" in said[0]


def test_positives_that_repeat_an_item_are_counted(capsys):
    rows = [("u", f"i{n % 20}", START + 9000 * n) for n in range(30)]
    write("f.csv", "user,item,time", [*rows, *rows[:5], ("v", "i1", START), ("v", "i2", START)])
    (sentence,) = [one for one in found(capsys, "f.csv")["remarks"] if "before" in one]
    assert sentence.startswith("10 positives are of an item that the user had before.")


# --- splits


def test_an_order_is_assumed_only_where_no_column_may_explain_it(capsys):
    rows = grouped(60)
    hours = [value for n in range(60) for value in -np.sort(-heavy(9, n))]
    write("f.csv", "user,item,x", [(*row, h) for row, h in zip(rows, hours, strict=True)])
    assert found(capsys, "f.csv")["split"] == "random"
    write("f.csv", "user,item", rows)
    assert found(capsys, "f.csv")["split"] == "last_out"


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        (["train.csv", "test.csv"], ["train.csv", "test.csv"]),
        (["d/train-1.csv", "d/train-2.csv", "d/test-1.csv"], ["d/*.csv"]),
        (["train/a.csv", "test/a.csv"], ["train/*.csv", "test/*.csv"]),
    ],
)
def test_files_with_times_that_are_named_after_parts_are_a_given_split(
    here, capsys, files, arguments
):
    for folder in ("d", "train", "test"):
        (here / folder).mkdir()
    for name in files:
        write(name, "user_id,item_id,timestamp", events())
    result = found(capsys, *arguments)
    assert (result["split"], result["order"]) == ("given", "time")
    assert "split: time" in result["split_reason"]
    config = written().interactions
    held = [config.eval_files] if isinstance(config.eval_files, str) else config.eval_files
    assert all("test" in name for name in held)
    assert "test" not in str(config.files).replace(str(here), "")


# --- spans


def test_columns_and_counts_are_those_of_all_spans(capsys):
    for day in range(1, 4):
        rows = [(f"u{n % 7}", f"i{n % 11}", START + 86_400 * day + n, n) for n in range(50 * day)]
        write(f"events-2020-09-0{day}.csv", "user,item,ts,n", rows)
    result = found(capsys, "events-{YYYY}-{MM}-{DD}.csv")
    assert len(result["files"]) == 3
    assert [column["rows"] for column in result["columns"]] == [300] * 4
    assert (result["rows"], result["good"]) == (300, 300)
    assert load_config("out.yaml").name == "events"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("logs/{YYYY}-{MM}-{DD}/*.csv", "logs"),
        ("logs/day={SPAN}/{VERSION}.csv", "day"),
        ("logs/**/*.csv", "logs"),
        ("logs/2020/part-0.csv", "part-0"),
    ],
)
def test_a_pattern_names_the_run_after_what_is_fixed(here, capsys, pattern, name):
    path = pattern.translate(str.maketrans({"*": "x"}))
    parts = {"YYYY": "2020", "MM": "09", "DD": "13", "SPAN": "18518", "VERSION": "1"}
    for part, digits in parts.items():
        path = path.replace(f"{{{part}}}", digits)
    (here / path).parent.mkdir(parents=True)
    write(path, "user,item,ts", events())
    found(capsys, pattern)
    assert load_config("out.yaml").name == name
