"""Tokens of every kind of feature, made by TFT in a process of its own, against plain Python."""

import datetime as dt
import json
import re
from collections import Counter

import numpy as np
import pytest
from on_tensorflow import run_on_tensorflow
from places import SUPPORT

from recsys.data.config import read_feature
from recsys.data.encodings import encode_number, learn_number

pytestmark = [pytest.mark.pipeline, pytest.mark.slow]

_SCRIPT = SUPPORT / "tokens.py"
_MISSING_DATE = -(2**63)
_FEATURES = [
    {"name": "plan", "column": "plan", "kind": "category"},
    {"name": "tags", "column": "tags", "kind": "categories", "max_tokens": 2, "min_count": 3},
    {"name": "tags_hashed", "column": "tags", "kind": "categories", "hash_buckets": 7},
    {"name": "pair", "column": "pair", "kind": "categories"},
    {"name": "bio", "column": "bio", "kind": "words", "max_tokens": 4},
    {"name": "age", "column": "age", "kind": "number", "buckets": 4},
    {"name": "score", "column": "score", "kind": "number", "buckets": 2},
    {"name": "joined", "column": "joined", "kind": "date", "buckets": 3},
    {"name": "nothing", "column": "nothing", "kind": "category"},
    {"name": "no_number", "column": "no_number", "kind": "number"},
    {"name": "face", "column": "face", "kind": "vector", "width": 3},
    {"name": "plan_age", "kind": "cross", "of": ["plan", "age"], "hash_buckets": 40},
    *(
        {"name": f"{column}_{name}", "column": column, "kind": "number", **options}
        for name, options in {
            "dense": {"as": "dense"},
            "log": {"as": "dense", "scale": "log"},
        }.items()
        for column in ("age", "no_number")
    ),
]
_COLUMNS = {
    "user_id": "text",
    "plan": "text",
    "tags": "text",
    "pair": "text",
    "bio": "text",
    "age": "float",
    "score": "float",
    "joined": "int",
    "nothing": "text",
    "no_number": "float",
    "face": "float",
}

# As a committed schema may have it.
_SHAPES = {"user_id": [], "score": [], "pair": [2]}


def seconds(year, month, day, hour=0):
    return int(dt.datetime(year, month, day, hour, tzinfo=dt.UTC).timestamp())


def make_row(n):
    return {
        "user_id": [f"ü{n}"],
        "plan": [["free", "Pro, yearly", " free ", ""][n % 4]] if n % 5 else [],
        "tags": [["a"], ["a", "b", "c"], ["rare"] if n == 2 else [], ["b|c"]][n % 4],
        "pair": [["left", "up"], ["right", "down"]][n % 2],
        "bio": [f"https://a.org/x?y={n} Über-Wolf {n % 3}: the WOLF's Straße"] if n % 6 else [],
        "age": [float(n)] if n % 10 else [],
        "score": [n / 10],
        "joined": [seconds(1955 + n, 1 + n % 12, 1 + n % 28, n % 24)] if n % 7 else [],
        "nothing": [],
        "no_number": [],
        "face": [n / 7, -n, 0.25] if n % 8 else [],
    }


_ROWS = [make_row(n) for n in range(60)]
_NEW = [
    {**_ROWS[1], "user_id": ["new"], "plan": ["gold"], "tags": ["zzz", "a"], "age": [1e9]},
    {**_ROWS[1], "score": [float("nan")], "joined": [_MISSING_DATE], "age": [float("inf")]},
    {**_ROWS[1], "plan": [""], "bio": [" ., "], "tags": ["", " b "], "age": [-5.0]},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    world = {"features": _FEATURES, "columns": _COLUMNS, "rows": _ROWS, "new": _NEW}
    (folder / "world.json").write_text(json.dumps({**world, "shapes": _SHAPES}))
    run_on_tensorflow(_SCRIPT, folder)
    assert "frequency_threshold" not in (folder / "tokens.err").read_text()  # TFT's warnings.
    result = json.loads((folder / "result.json").read_text())
    by_id = {}
    for ids, bags in result["tokens"]:
        for at, id_ in enumerate(ids):
            by_id[id_] = {name: bag[at] for name, bag in bags.items()}
    return {**result, "of": [by_id[row["user_id"][0]] for row in _ROWS]}


def padded(tokens, width):
    return [*tokens, *[0] * width][:width]


def test_every_row_keeps_its_id_of_any_text(made):
    assert len(made["of"]) == 60
    assert sum(len(ids) for ids, _ in made["tokens"]) == 60


def by_vocabulary(made, name, tokens, width):
    row_of = {token: row + 1 for row, token in enumerate(made["vocabularies"][name])}
    return padded([row_of[token] for token in tokens if token in row_of], width)


def test_a_category_is_one_token_of_the_whole_value_without_blanks(made):
    for row, bags in zip(_ROWS, made["of"], strict=True):
        tokens = [value.strip() for value in row["plan"] if value.strip()]
        assert bags["plan"] == by_vocabulary(made, "plan", tokens, 1)
    assert set(made["vocabularies"]["plan"]) == {"free", "Pro, yearly"}


def test_categories_are_the_values_of_a_list_the_first_known_ones(made):
    counts = Counter(tag for row in _ROWS for tag in row["tags"])
    assert set(made["vocabularies"]["tags"]) == {tag for tag, n in counts.items() if n >= 3}
    assert "rare" in counts
    # Values of a list are not split at separators.
    assert "b|c" in made["vocabularies"]["tags"]
    for row, bags in zip(_ROWS, made["of"], strict=True):
        assert bags["tags"] == by_vocabulary(made, "tags", row["tags"], 2)


def test_categories_of_a_fixed_number_are_all_read(made):
    for row, bags in zip(_ROWS, made["of"], strict=True):
        assert bags["pair"] == by_vocabulary(made, "pair", row["pair"], 8)


def test_hashed_categories_have_the_row_of_their_fingerprint(made):
    for row, bags in zip(_ROWS, made["of"], strict=True):
        rows = [1 + fingerprint(tag) % 7 for tag in row["tags"]]
        assert bags["tags_hashed"] == padded(rows, 8)


def fingerprint(text):
    import farmhash

    return farmhash.fingerprint64(text)


def words_of(row):
    """Returns the words of a row's text behind its web address."""
    texts = [text.lower().partition(" ")[2] for text in row["bio"]]
    return [word for text in texts for word in re.findall(r"\w+", text)]


def test_words_are_lower_cased_runs_of_letters_and_digits(made):
    for row, bags in zip(_ROWS, made["of"], strict=True):
        assert bags["bio"] == by_vocabulary(made, "bio", words_of(row), 4)
    assert {"über", "wolf", "s", "straße"} <= set(made["vocabularies"]["bio"])


def test_web_addresses_are_no_words(made):
    assert not {"https", "a", "org", "x", "y"} & set(made["vocabularies"]["bio"])


@pytest.mark.parametrize(("name", "column", "buckets"), [("age", "age", 4), ("score", "score", 2)])
def test_a_number_is_the_bucket_of_its_quantile(made, name, column, buckets):
    pairs = sorted(
        (row[column][0], bags[name][0])
        for row, bags in zip(_ROWS, made["of"], strict=True)
        if row[column]
    )
    rows = [row for _, row in pairs]
    assert rows == sorted(rows)
    sizes = Counter(rows)
    assert set(sizes) == set(range(1, buckets + 1))
    assert max(sizes.values()) - min(sizes.values()) <= 3
    assert all(
        bags[name] == [0] for row, bags in zip(_ROWS, made["of"], strict=True) if not row[column]
    )


def test_a_date_is_the_bucket_of_its_day_and_its_month(made):
    known = []
    for row, bags in zip(_ROWS, made["of"], strict=True):
        if not row["joined"]:
            assert bags["joined"] == [0, 0]
            continue
        day, month = bags["joined"]
        known.append((row["joined"][0], day))
        assert month == 3 + dt.datetime.fromtimestamp(row["joined"][0], dt.UTC).month
    days = [day for _, day in sorted(known)]
    assert days == sorted(days)
    assert set(days) == {1, 2, 3}


def of_tokens(made):
    return {name: rows for name, rows in made["rows"].items() if rows}


def test_the_tables_have_a_row_for_every_token(made):
    expected = {"plan": 3, "tags_hashed": 8, "age": 5, "score": 3, "joined": 16, "no_number": 11}
    assert {name: made["rows"][name] for name in expected} == expected
    for name, words in made["vocabularies"].items():
        assert made["rows"][name] == 1 + len(words)
    for name, rows in of_tokens(made).items():
        assert max(max(bags[name]) for bags in made["of"]) < rows


def named(made, name, bags):
    return [made["names"][name][row] for row in bags[name] if row]


def test_every_token_row_has_the_name_of_its_token(made):
    for row, bags in zip(_ROWS, made["of"], strict=True):
        plan = [value.strip() for value in row["plan"] if value.strip()]
        assert named(made, "plan", bags) == plan
        assert named(made, "tags", bags) == [tag for tag in row["tags"] if tag != "rare"][:2]
        assert named(made, "bio", bags) == words_of(row)[:4]
        if row["joined"]:
            date = dt.datetime.fromtimestamp(row["joined"][0], dt.UTC)
            bucket = f"bucket {bags['joined'][0]} of 3"
            assert named(made, "joined", bags) == [bucket, date.strftime("%B")]
    assert made["names"]["score"] == ["", "bucket 1 of 2", "bucket 2 of 2"]
    assert "tags_hashed" not in made["names"]
    assert {name: len(names) for name, names in made["names"].items()} == {
        name: rows
        for name, rows in of_tokens(made).items()
        if name not in ("tags_hashed", "plan_age")
    }


def test_columns_without_any_value_have_no_tokens(made):
    assert {tuple(bags["nothing"] + bags["no_number"]) for bags in made["of"]} == {(0, 0)}


def test_the_saved_graph_leaves_out_what_is_new_or_missing(made):
    new = made["new"]
    assert [bag[0] for bag in new["plan"]] == [0, made["of"][1]["plan"][0], 0]
    assert new["tags"][0] == by_vocabulary(made, "tags", ["a"], 2)
    assert new["tags"][2] == by_vocabulary(made, "tags", ["b"], 2)
    assert new["tags_hashed"][0][0] == 1 + fingerprint("zzz") % 7
    assert new["bio"][2] == [0, 0, 0, 0]
    # Beyond all that was seen is the last bucket, or the first; no number is none.
    assert [bag[0] for bag in new["age"]] == [4, 0, 1]
    assert new["score"][1] == [0]
    assert new["joined"][1] == [0, 0]


@pytest.mark.parametrize("kind", ["dense", "log"])
def test_numbers_are_encoded_as_those_of_events_are(made, kind):
    options = next(f for f in _FEATURES if f["name"] == f"age_{kind}")
    feature = read_feature(options)
    values = np.array([row["age"][0] for row in _ROWS if row["age"]], np.float32)
    learned = learn_number(feature, *np.unique(values, return_counts=True))
    x = np.array([row["age"][0] if row["age"] else np.nan for row in _ROWS], np.float32)
    found = np.array([bags[f"age_{kind}"] for bags in made["of"]])
    np.testing.assert_allclose(found, encode_number(feature, x, learned), rtol=1e-5, atol=1e-5)
    new = np.array([1e9, np.nan, -5], np.float32)
    expected = encode_number(feature, new, learned)
    np.testing.assert_allclose(made["new"][f"age_{kind}"], expected, rtol=1e-5, atol=1e-5)
    assert {sum(bags[f"no_number_{kind}"]) for bags in made["of"]} == {0}
    assert made["rows"][f"age_{kind}"] == 0


def test_a_vector_is_its_numbers_and_whether_it_is_there(made):
    for row, bags in zip(_ROWS, made["of"], strict=True):
        expected = [*row["face"], 1] if row["face"] else [0] * 4
        np.testing.assert_allclose(bags["face"], expected, rtol=1e-6)


def test_a_cross_has_a_row_for_each_pair_of_tokens(made):
    pairs = {}
    for row, bags in zip(_ROWS, made["of"], strict=True):
        pair = (*[value.strip() for value in row["plan"]], bags["age"][0])
        has_both = bags["plan"][0] > 0 and bags["age"][0] > 0
        assert (bags["plan_age"][0] > 0) == has_both
        if has_both:
            assert pairs.setdefault(pair, bags["plan_age"]) == bags["plan_age"]
    assert len(pairs) == 8
    assert len({tuple(bag) for bag in pairs.values()}) > 5
