"""`recsys check` on tiny versions of public data sets: a config without any options."""

import json

import data_shapes
import pytest
from checking import columns, found
from commands import run_main
from reading import read_interactions

from recsys.config.load import load_config
from recsys.data.ingest.spans import check_sources
from recsys.data.interactions import drop_duplicates

NOW = 1_790_000_000


def config_of(here):
    return load_config(here / "out.yaml").data


def counted(config):
    """Returns how many rows the config reads, and how many a run keeps of them."""
    read = read_interactions(config, NOW)
    return read.n_read, drop_duplicates(read.good)[0].num_rows


SHAPES = {
    "movielens": {
        "sides": ["items"],
        "roles": {
            "user": "userId", "item": "movieId", "timestamp": "timestamp", "rating": "rating",
        },
        "split": "time",
        "items": ("movieId", "title"),
        "features": {"title": "words", "genres": "categories"},
        "positive_at_least": 4.0,
    },
    "amazon_ratings": {
        "roles": {"user": "c1", "item": "c2", "timestamp": "c4", "rating": "c3"},
        "split": "time",
        "positive_at_least": 4.0,
    },
    "amazon_reviews": {
        "sides": ["items"],
        "roles": {
            "user": "user_id", "item": "parent_asin", "timestamp": "timestamp", "rating": "rating",
        },
        "split": "time",
        "unit": "milliseconds",
        "items": ("parent_asin", "title"),
        "features": {
            "title": "words", "average_rating": "category", "features": "categories",
            "price": "category", "store": "category", "categories": "categories",
            "details.Brand": "category",
        },
        "positive_at_least": 4.0,
    },
    "lastfm": {
        "sides": ["items"],
        "roles": {"user": "userID", "item": "artistID", "weight": "weight"},
        "split": "random",
        "items": ("id", "name"),
        "features": {"name": "words"},
        "weight_scale": "log",
    },
    "sasrec": {"roles": {"user": "c1", "item": "c2"}, "split": "last_out", "order": "file"},
    "recbole": {
        "sides": ["items"],
        "roles": {
            "user": "user_id:token", "item": "item_id:token", "timestamp": "timestamp:float",
            "rating": "rating:float",
        },
        "split": "time",
        "items": ("item_id:token", "movie_title:token_seq"),
        "features": {
            "movie_title:token_seq": "words", "release_year:token": "date",
            "class:token_seq": "categories",
        },
        "positive_at_least": 4.0,
    },
    "gowalla": {
        "roles": {"user": "c1", "item": "c5", "timestamp": "c2"},
        "split": "time",
        "unit": "iso8601",
    },
    "otto": {
        "roles": {
            "user": "session", "item": "events.aid", "timestamp": "events.ts",
            "event": "events.type",
        },
        "split": "time",
        "unit": "milliseconds",
        "explode": {"column": "events", "separator": None},
    },
    "lightgcn": {
        "roles": {"user": "user", "item": "items"},
        "split": "given",
        "explode": {"column": "items", "separator": " "},
        "empty_lists": 6,
    },
    "book_crossing": {
        "sides": ["items", "users"],
        "roles": {"user": "User-ID", "item": "ISBN", "rating": "Book-Rating"},
        "split": "random",
        "items": ("ISBN", "Book-Title"),
        "users": ("User-ID", None),
        "features": {
            "Book-Title": "words", "Book-Author": "category", "Year-Of-Publication": "date",
            "Publisher": "category",
        },
        "positive_at_least": 8.0,
        "decimal": ",",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_the_files_of_a_public_data_set_need_no_word(here, capsys, name):
    expected = SHAPES[name]
    files = getattr(data_shapes, f"write_{name}")(here)
    sides = dict(zip(expected.get("sides", []), files[1:], strict=False))
    events = files[:1] if sides else files
    words = [word for what, file in sides.items() for word in (f"--{what}", file)]
    result = found(capsys, *events, *words)

    assert result["undecided"] == []
    assert columns(result) == expected["roles"]
    assert result["rejected"] == {}
    assert (result["split"], result["explode"]) == (expected["split"], expected.get("explode"))
    assert result["empty_lists"] == expected.get("empty_lists", 0)
    data = config_of(here)
    check_sources(data)
    config = data.interactions
    order = "time" if "timestamp" in expected["roles"] else expected.get("order", "none")
    assert (data.split, config.ordered_by) == (expected["split"], order)
    assert config.timestamp_unit == expected.get("unit", "seconds")
    assert config.positive_at_least == expected.get("positive_at_least")
    assert config.weight_scale == expected.get("weight_scale", "linear")
    assert config.csv.decimal == expected.get("decimal", ".")
    # The announced numbers equal what a run reads and keeps.
    assert counted(config) == (result["rows"], result["good"])

    for what in sides:
        side = result[what]
        assert (side["id"], side["title"]) == expected[what]
        assert (side["good"], side["rejected"], side["duplicates"]) == (side["rows"], {}, 0)
        assert side["interactions_known"] == result["good"]
    if "items" in sides:
        features = {one["column"]: one["kind"] for one in result["items"]["features"]}
        assert features == expected["features"]


def test_what_a_header_of_recbole_calls_a_sequence_is_split_at_blanks(here, capsys):
    files = data_shapes.write_recbole(here)
    found(capsys, files[0], "--items", files[1])
    (genres,) = [one for one in config_of(here).items.features if one.kind == "categories"]
    assert (genres.column, genres.separator) == ("class:token_seq", " ")


@pytest.mark.parametrize("separator", [" ", ",", "|"])
def test_a_column_of_lists_is_the_item_where_no_other_is(here, capsys, separator):
    rows = [f'u{u},"{separator.join(str(7 * u + k) for k in range(u % 5 + 1))}"' for u in range(90)]
    (here / "f.csv").write_text("\n".join(["user_id,history", *rows]) + "\n")
    result = found(capsys, here / "f.csv")
    assert columns(result) == {"user": "user_id", "item": "history"}
    assert result["explode"] == {"column": "history", "separator": separator}
    assert counted(config_of(here).interactions)[0] == sum(u % 5 + 1 for u in range(90))


def test_a_session_without_events_doesnt_hide_the_item_of_the_others(here, capsys):
    day = [1_600_000_000_000 + 86_400_000 * n for n in range(60)]
    sessions = [
        {"session": n, "events": [{"aid": 7 * n + k, "ts": day[n]} for k in range(n % 4)]}
        for n in range(60)
    ]
    (here / "f.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in sessions))
    result = found(capsys, here / "f.jsonl")
    config = config_of(here).interactions
    assert columns(result) == {"user": "session", "item": "events.aid", "timestamp": "events.ts"}
    assert (config.explode.column, result["empty_lists"], result["rejected"]) == ("events", 15, {})


def test_columns_without_names_make_features_of_different_names(here, capsys):
    """MovieLens 100K: no headers at all; ids, and what is known of them, in three files."""
    events = [f"{7 * n % 90 + 1}\t{11 * n % 170 + 1}\t{n % 5 + 1}\t{880_000_000 + 999 * n}"
              for n in range(3000)]  # fmt: skip
    items = [
        f"{i}|Café {i} (1995)|{i % 28 + 1:02d}-Jan-1995||http://x.org/M/{i}|{i % 2}|{i % 3 // 2}"
        for i in range(1, 171)
    ]
    users = [f"{u}|{u % 50 + 10}|{'MF'[u % 2]}|writer{u % 4}|{10_000 + u}" for u in range(1, 91)]
    for name, rows in (("u.data", events), ("u.item", items), ("u.user", users)):
        (here / name).write_bytes("".join(f"{row}\n" for row in rows).encode("latin-1"))
    files = [here / name for name in ("u.data", "u.item", "u.user")]
    result = found(capsys, files[0], "--items", files[1], "--users", files[2])
    assert columns(result) == {"user": "c1", "item": "c2", "rating": "c3", "timestamp": "c4"}
    data = config_of(here)
    assert {one.column: one.kind for one in data.items.features} == {
        "c2": "words", "c3": "date", "c6": "category", "c7": "category",
    }  # fmt: skip
    assert len({one.name for one in (*data.items.features, *data.users.features)}) == 8


# --- what decides: the values of ids, and the bulk of times


def test_ids_of_a_catalogue_win_over_counts_and_names(here, capsys):
    # The counts are all ids of the catalogue too, but don't cover it.
    rows = [f"{u},{7 * i % 90 + 1},{1 + (u * i) % 30}" for u in range(60) for i in range(90)]
    (here / "f.csv").write_text("\n".join(["who,what,item_plays", *rows]) + "\n")
    catalogue = [f"{i},The thing {i}" for i in range(1, 91)]
    (here / "g.csv").write_text("\n".join(["number,label", *catalogue]) + "\n")
    result = found(capsys, here / "f.csv", "--items", here / "g.csv", "--map", "user=who")
    assert columns(result)["item"] == "what"
    assert result["items"]["id"] == "number"
    assert "100% of its values are in the items' file" in result["roles"]["item"]["reason"]


def test_rows_of_catalogues_are_looked_at(here, capsys):
    events = [f"u{u},i{i},{1_500_000_000 + 86_400 * u}" for u in range(30) for i in range(10)]
    (here / "f.csv").write_text("\n".join(["user,item,time", *events]) + "\n")
    items = [f"i{i},{i}.5" for i in range(8)] + ["i1,7", ",3", "i9", f"{'x' * 2000},3"]
    (here / "g.csv").write_text("\n".join(["item,price", *items]) + "\n")
    result = found(capsys, here / "f.csv", "--items", here / "g.csv")
    side = result["items"]
    assert (side["rows"], side["good"], side["duplicates"]) == (12, 8, 1)
    too_long = "item id over 1024 bytes, or with a NUL"
    assert side["rejected"] == {"empty item id": 1, "wrong number of fields": 1, too_long: 1}
    assert side["rejected_examples"]["empty item id"][1] == 11
    assert side["interactions_known"] == 240
    stops, covers, *_ = (sentence for sentence in result["remarks"] if "items" in sentence)
    assert "a run would stop" in stops
    assert "80.00%" in covers


@pytest.mark.parametrize(
    ("real", "factor", "unit"),
    [(1_500_000_000, 1, "seconds"), (1_500_000_000, 1000, "milliseconds"),
     (700_000_000, 1, "seconds")],
)  # fmt: skip
@pytest.mark.parametrize("odd", [253_402_300_799, 0, -1])
def test_the_bulk_of_the_times_says_the_unit(here, capsys, real, factor, unit, odd):
    times = [factor * (real + 86_400 * n) if n % 5 else odd for n in range(300)]
    rows = [f"{n % 20},{n % 30},{time}" for n, time in enumerate(times)]
    (here / "f.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    result = found(capsys, here / "f.csv")
    assert result["timestamp_unit"] == unit
    is_good = odd == 253_402_300_799 and factor == 1000  # 1978 is a time as any.
    assert result["rejected"].get("timestamp before 1971 or in the future", 0) == 60 * (not is_good)


# --- how values are written


@pytest.mark.parametrize(
    ("times", "format_"),
    [
        (["31/12/2023 10:00", "01/02/2023 11:30"], "%d/%m/%Y %H:%M"),
        (["12/31/2023 10:00", "01/02/2023 11:30"], "%m/%d/%Y %H:%M"),
        (["March 3, 2024", "April 4, 2024"], "%B %d, %Y"),
        (["Tue, 03 Mar 2015 10:00:00 +0100", "Wed, 04 Mar 2015 1:00:00 -0230"],
         "%a, %d %b %Y %H:%M:%S %z"),
    ],
)  # fmt: skip
def test_the_format_of_times_is_reported(here, capsys, times, format_):
    rows = [f'{n % 20},{n % 30},"{times[n % 2]}"' for n in range(300)]
    (here / "f.csv").write_text("\n".join(["user,item,when", *rows]) + "\n")
    result = found(capsys, here / "f.csv")
    config = config_of(here).interactions
    assert result["timestamp_format"] == format_
    assert config.timestamp_format == format_
    assert (result["rejected"], result["good"] > 0) == ({}, True)


def test_if_no_value_distinguishes_day_from_month_both_are_named(here, capsys):
    rows = [f"{n % 20},{n % 30},0{n % 9 + 1}/0{n % 7 + 1}/2023" for n in range(300)]
    (here / "f.csv").write_text("\n".join(["user,item,date", *rows]) + "\n")
    result = found(capsys, here / "f.csv")
    assert result["undecided"] == [
        "timestamp: date may be %d/%m/%Y or %m/%d/%Y: no value tells which"
    ]
    assert not (here / "out.yaml").exists()
    found(capsys, here / "f.csv", "--map", "timestamp_format=%m/%d/%Y")
    assert config_of(here).interactions.timestamp_format == "%m/%d/%Y"


def test_kinds_of_item_columns_are_detected_by_their_values(here, capsys):
    genres = ["Action Comedy", "Comedy", "Drama Action", "Drama", "Comedy Drama", "Action"]
    genres += ["Action Drama Comedy", "Comedy Action"]
    rows = [
        f"i{n};{genres[n % 8]};http://x.org/{n};{n % 5},5;{n % 28 + 1:02d}-Jan-19{n % 50 + 20};"
        f"{('red', 'dark blue', 'sky blue')[n % 3]};A {('long', 'good')[n % 2]} story of {n} men"
        for n in range(200)
    ]
    head = "item;genres;url;price;released;colour;story"
    (here / "g.csv").write_text("\n".join([head, *rows]) + "\n")
    events = [f"u{n % 30},i{n % 200},{1_500_000_000 + 86_400 * n}" for n in range(600)]
    (here / "f.csv").write_text("\n".join(["user,item,time", *events]) + "\n")
    result = found(capsys, here / "f.csv", "--items", here / "g.csv")
    features = {one.column: one for one in config_of(here).items.features}
    assert {name: one.kind for name, one in features.items()} == {
        "genres": "categories", "price": "category", "released": "date", "colour": "category",
        "story": "words",
    }  # fmt: skip
    assert features["genres"].separator == " "
    assert features["released"].format == "%d-%b-%Y"
    assert result["items"]["left_out"] == {"url": "web addresses"}
    assert result["items"]["rejected"] == {}


def test_numbers_among_which_is_text_are_no_number_that_a_run_would_reject(here, capsys):
    zips = [f"{10_000 + n % 25}" if n % 20 else f"{n % 25}-A" for n in range(200)]
    (here / "u.csv").write_text("user,zip\n" + "".join(f"u{n},{z}\n" for n, z in enumerate(zips)))
    events = [f"u{n % 200},i{n % 30},{1_600_000_000 + 9000 * n}" for n in range(600)]
    (here / "f.csv").write_text("\n".join(["user,item,time", *events]) + "\n")
    result = found(capsys, here / "f.csv", "--users", here / "u.csv")
    assert [one["kind"] for one in result["users"]["features"]] == ["category"]
    assert (result["users"]["rejected"], result["remarks"]) == ({}, [])


def test_epoch_seconds_and_days_without_signs_are_dates_of_items(here, capsys):
    events = [f"u{at % 9},i{at % 30},{1_600_000_000 + at * 1000}" for at in range(200)]
    (here / "events.csv").write_text("\n".join(["user,item,time", *events]) + "\n")
    days = [(1_400_000_000 + at * 86_400, f"201501{1 + at:02}", 1990 + at) for at in range(30)]
    items = [f"i{at},{added},{day},{year}" for at, (added, day, year) in enumerate(days)]
    (here / "items.csv").write_text("\n".join(["item,added,day,year", *items]) + "\n")
    words = ["check", here / "events.csv", "--items", here / "items.csv"]
    out = here / "c.yaml"
    assert run_main(*words, "--out", out) == 0
    said = capsys.readouterr().out
    assert not {"1,400,000,000", "1400000000", "1,990"} & set(said.split())
    features = {feature.name: feature for feature in load_config(out).data.items.features}
    assert {feature.value for feature in features.values()} == {"date"}
    assert features["day"].detail == "%Y%m%d"
