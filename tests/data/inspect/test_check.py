"""`recsys check`: what it understands, what it refuses to guess, and the config it writes."""

import json
import random
import shlex
from pathlib import Path

import checking
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checking import columns, grouped
from commands import run_main
from places import ROOT
from reading import read_interactions

from recsys.config.load import load_config
from recsys.data.ingest.spans import check_sources
from recsys.data.inspect import profile
from recsys.data.inspect.layout import find_layout
from recsys.data.sources.source_files import Section
from recsys.errors import RecsysError

pytestmark = pytest.mark.usefixtures("here")


def check(*arguments):
    """Runs the command in this process and returns its exit code."""
    return run_main("check", *arguments)


def found(capsys, *arguments):
    return checking.found(capsys, *arguments, out=())


def n_good(path):
    """Returns the rows and the good ones that the written config reads."""
    data = load_config(path).data
    check_sources(data)
    read = read_interactions(data.interactions, 1_700_000_000)
    return read.n_read, read.good.num_rows


def events(n, seed=0):
    chance = random.Random(seed)
    for _ in range(n):
        yield (
            chance.randrange(1, 600),
            chance.randrange(1, 400),
            chance.randrange(1, 6),
            chance.randrange(956_703_932, 1_046_454_590),
        )


def write_movielens_1m(folder):
    lines = [f"{u}::{i}::{r}::{t}\n" for u, i, r, t in events(3000)]
    (folder / "ratings.dat").write_text("".join(lines))
    movies = [f"{k}::Café {k} (19{k % 90 + 10})::Action|Drama\n" for k in range(1, 400)]
    (folder / "movies.dat").write_bytes("".join(movies).encode("latin-1"))


# --- three shapes of foreign data


def test_movielens_dat_files_need_no_word_beside_the_catalogue(here, capsys):
    write_movielens_1m(here)
    result = found(capsys, "ratings.dat", "--items", "movies.dat")
    assert columns(result) == {"user": "c1", "item": "c2", "rating": "c3", "timestamp": "c4"}
    assert result["csv"] == {
        "delimiter": "::", "quote": '"', "names": ["c1", "c2", "c3", "c4"], "encoding": "utf-8",
        "decimal": ".", "skip_rows": 0,
    }  # fmt: skip
    assert (result["items"]["id"], result["items"]["title"]) == ("c1", "c2")
    config = load_config(here / "ratings.yaml").data
    assert config.items.csv.encoding == "latin-1"
    assert config.interactions.positive_at_least == 4.0
    assert n_good(here / "ratings.yaml") == (3000, 3000)


def test_without_header_and_catalogue_user_and_item_are_requested(here, capsys):
    write_movielens_1m(here)
    result = found(capsys, "ratings.dat")
    assert [sentence.partition(":")[0] for sentence in result["undecided"]] == ["item", "user"]
    assert "--map user=c1,item=c2" in result["try"]
    assert not (here / "ratings.yaml").exists()
    assert check("ratings.dat", "--map", "user=1,item=2") == 0
    assert n_good(here / "ratings.yaml") == (3000, 3000)


def test_the_suggested_command_can_be_pasted_and_names_columns_like_ids(here, capsys):
    rows = "".join(f"{n},{u},{i},{r}\n" for n, (u, i, r, _) in enumerate(events(3000)))
    (here / "my file.csv").write_text("line,alpha,beta,stars\n" + rows)
    pasted = shlex.split(found(capsys, "my file.csv")["try"])
    assert pasted == ["recsys", "check", "my file.csv", "--map", "user=alpha,item=beta"]
    assert check(*pasted[2:]) == 0


@pytest.mark.parametrize(
    ("words", "named"), [("no.csv", "FILE"), ("f.csv --items no.csv", "--items")]
)
def test_a_missing_file_is_reported_by_its_word_on_the_command_line(here, capsys, words, named):
    (here / "f.csv").write_text("user,item\n1,2\n3,4\n")
    assert check(*words.split()) == 1
    expected = (
        f"'no.csv' must name at least one file. Received: 'no such file'. Correct {named} on the"
    )
    assert expected in capsys.readouterr().err


def test_the_shipped_data_are_understood(here, capsys):
    folder = ROOT / "data" / "ml-latest-small"
    result = found(capsys, str(folder / "ratings.csv"), "--items", str(folder / "movies.csv"))
    shipped = load_config(ROOT / "configs" / "movielens_small.yaml").data
    assert columns(result) == {
        "user": "userId", "item": "movieId", "rating": "rating", "timestamp": "timestamp",
    }  # fmt: skip
    assert (result["rows"], result["good"]) == (100_836, 100_835)
    assert list(result["rejected"].values()) == [1]
    written = load_config(here / "ratings.yaml").data
    assert written.interactions.positive_at_least == shipped.interactions.positive_at_least
    assert {f.column: f.kind for f in written.items.features} == {
        f.column: f.kind for f in shipped.items.features
    }


def test_a_constant_column_that_is_named_so_is_the_user_and_a_map_is_no_column(here, capsys):
    n = 100
    table = {
        "user_id": ["only"] * n,
        "item": [{"id": k % 7} for k in range(n)],
        "more": pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int64())),
        "at": pa.array(range(1_500_000_000, 1_500_000_000 + n), pa.timestamp("s")),
        "nothing": pa.nulls(n),
    }
    pq.write_table(pa.table(table), here / "f.parquet")
    result = found(capsys, "f.parquet")
    assert columns(result) == {"user": "user_id", "item": "item.id", "timestamp": "at"}
    assert n_good(here / "f.yaml") == (n, n)


def test_ratings_among_which_is_text_have_a_threshold(here, capsys):
    ratings = ["N/A", *(f"{k % 5 + 1}" for k in range(99))]
    rows = "".join(f"{k},{k % 9},{r},1500000000\n" for k, r in enumerate(ratings))
    (here / "f.csv").write_text("user_id,item_id,rating,time\n" + rows)
    found(capsys, "f.csv")
    assert load_config(here / "f.yaml").data.interactions.positive_at_least == 4.0


def test_an_event_of_very_many_kinds_is_written_without_them(here, capsys):
    rows = "".join(f"{k},{k % 9},kind{k},1500000000\n" for k in range(300))
    (here / "f.csv").write_text("user_id,item_id,how,time\n" + rows)
    assert columns(found(capsys, "f.csv", "--map", "event=how"))["event"] == "how"
    assert "Kinds" not in (here / "f.yaml").read_text()


@pytest.mark.parametrize(
    "header", [",user_id,item_id,ts", "x,user_id,item_id,ts,x", "user_id,item_id,x,,ts,x,"]
)
def test_columns_without_a_name_of_their_own_are_left_out(here, capsys, header):
    width = header.count(",") + 1
    place = {name: at for at, name in enumerate(header.split(","))}
    lines = [header]
    for k in range(100):
        row = [f"{k}"] * width
        row[place["item_id"]], row[place["ts"]] = f"{k % 7}", f"{1_500_000_000 + k}"
        lines.append(",".join(row))
    (here / "f.csv").write_text("\n".join(lines) + "\n")
    result = found(capsys, "f.csv")
    assert columns(result) == {"user": "user_id", "item": "item_id", "timestamp": "ts"}
    assert [one["name"] for one in result["columns"]] == ["user_id", "item_id", "ts"]
    assert n_good(here / "f.yaml") == (100, 100)


# --- what is not guessed


@pytest.mark.parametrize(
    ("role", "reason"),
    [("rating", "rating is not a finite number"), ("event", "no kind of event")],
)
def test_a_config_that_would_reject_every_row_is_not_written(here, capsys, role, reason):
    rows = [f"u{n % 7},i{n % 5},{1_600_000_000 + n * 9_999}," for n in range(300)]
    (here / "a.csv").write_text("\n".join(["user_id,item_id,ts,empty", *rows]) + "\n")
    result = found(capsys, "a.csv", "--map", f"{role}=empty")
    assert result["undecided"] == [
        f"a run would reject every row, most often for: {reason}; map other columns"
    ]
    assert not (here / "a.yaml").exists()


def test_two_columns_that_may_be_the_user_are_reported(here, capsys):
    rows = "".join(f"{u},{u + 1},{i},{t}\n" for u, i, _, t in events(200))
    (here / "f.csv").write_text("user_id,customer_id,item_id,time\n" + rows)
    assert check("f.csv") == 1
    assert "user_id and customer_id are equally likely" in capsys.readouterr().out
    assert check("f.csv", "--map", "user=customer_id") == 0
    assert load_config(here / "f.yaml").data.interactions.columns.user == "customer_id"


def test_a_column_without_times_is_reported_and_optional(here, capsys):
    rows = "".join(f"{u},{i},{n % 7}\n" for n, (u, i, *_) in enumerate(events(99)))
    (here / "f.csv").write_text("user,item,timestamp\n" + rows)
    assert check("f.csv") == 1
    out = capsys.readouterr().out
    assert "timestamp: no column holds times" in out
    assert "recsys check f.csv --map timestamp=none" in out
    assert check("f.csv", "--map", "timestamp=none") == 0
    assert load_config(here / "f.yaml").data.split == "random"


@pytest.mark.parametrize(
    ("files", "split", "order"),
    [
        ({"a.csv": grouped()}, "last_out", "file"),
        # Sorted by item, or users mixed: nothing says what came first.
        ({"a.csv": sorted(set(grouped()))}, "random", "none"),
        ({"a.csv": sorted(grouped(), key=lambda row: row[1][::-1])}, "random", "none"),
        ({"train.csv": grouped(), "test.csv": grouped(9)}, "given", "none"),
    ],
)
def test_data_without_times_get_a_split_that_fits(here, files, split, order, capsys):
    for name, rows in files.items():
        (here / name).write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in rows))
    assert check(*files, "--out", "out.yaml", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["split"], told["order"]) == (split, order)
    data = load_config(here / "out.yaml").data
    assert (data.split, data.interactions.ordered_by) == (split, order)
    if split == "given":
        assert Path(str(data.interactions.eval_files)).name == "test.csv"


def test_a_column_that_names_parts_is_seen(here):
    parts = ("train", "valid", "test")
    rows = "".join(f"{u},{i},{parts[n % 3]}\n" for n, (u, i) in enumerate(grouped()))
    (here / "f.csv").write_text("user,item,fold\n" + rows)
    assert check("f.csv") == 0
    data = load_config(here / "f.yaml").data
    assert (data.split, data.interactions.columns.part) == ("given", "fold")
    assert data.interactions.eval_parts == ("test",)
    assert data.interactions.train_parts == ("train",)
    assert check("f.csv", "--map", "part=none", "--force") == 0
    assert load_config(here / "f.yaml").data.split == "random"
    assert check("f.csv", "--map", "part=fold", "--force") == 0
    assert data.interactions.valid_parts == ("valid",)


def test_times_of_one_day_are_split_by_the_last_of_each_user(here):
    rows = "".join(f"{u},{i},{1_700_006_400 + n}\n" for n, (u, i) in enumerate(grouped()))
    (here / "f.csv").write_text("user,item,time\n" + rows)
    assert check("f.csv") == 0
    data = load_config(here / "f.yaml").data
    assert (data.split, data.interactions.ordered_by) == ("last_out", "time")


def test_columns_and_formats_may_have_commas(here, capsys):
    rows = "".join(f'"{u}","{i}","Jan {n % 28 + 1}, 2020"\n' for n, (u, i) in enumerate(grouped()))
    (here / "f.csv").write_text('"name, first","item,no","when"\n' + rows)
    named = "user=name, first,item=item,no"
    assert check("f.csv", "--map", f"{named},timestamp=when,timestamp_format=%b %d, %Y") == 0
    interactions = load_config(here / "f.yaml").data.interactions
    assert (interactions.columns.user, interactions.columns.item) == ("name, first", "item,no")
    assert interactions.timestamp_format == "%b %d, %Y"
    words = ["--map", named, "--map", "timestamp=when", "--map", "timestamp_format=%b %d, %Y"]
    assert check("f.csv", *words, "--force") == 0


@pytest.mark.parametrize("word", ["user=nobody", "chef=item", "user", "user=9"])
def test_a_wrong_map_exits_with_2(here, word):
    (here / "f.csv").write_text("user,item,time\n1,2,1000000000\n")
    assert check("f.csv", "--map", word) == 2


def test_a_config_is_not_overwritten_unasked(here, capsys):
    write_movielens_1m(here)
    (here / "ratings.yaml").write_text("mine")
    arguments = ["ratings.dat", "--map", "user=1,item=2"]
    assert check(*arguments) == 2
    assert "R259" in capsys.readouterr().err
    assert (here / "ratings.yaml").read_text() == "mine"
    assert check(*arguments, "--force") == 0
    assert check(*arguments, "--out", "sub/other.yaml") == 0
    assert n_good(here / "sub" / "other.yaml") == (3000, 3000)


# --- what a run would reject


def test_what_a_run_would_reject_is_shown_with_an_example(here, capsys):
    good = "".join(f"{u},{i},{t}\n" for u, i, _, t in events(500))
    (here / "f.csv").write_text(f"user,item,time\n{good},7,1000000000\n1,2\n1,2,5\n1,3,1\n" + good)
    result = found(capsys, "f.csv")
    assert result["rejected"] == {
        "wrong number of fields": 1,
        "empty user id": 1,
        "timestamp before 1971 or in the future": 2,
    }
    assert result["rejected_examples"]["empty user id"] == ["f.csv", 502, ",7,1000000000"]
    # Good is what a run keeps: no duplicates.
    assert (result["rows"], result["good"], result["duplicates"]) == (1004, 500, 500)
    assert result["duplicate_share"] == 0.5


def test_a_sample_reads_no_more_than_it_says(here, capsys):
    rows = "".join(f"{u},{i},{t},{'x' * 100}\n" for u, i, _, t in events(100_000))
    (here / "f.csv").write_text("user,item,time,more\n" + rows)
    result = found(capsys, "f.csv", "--sample", "1000")
    assert result["rows"] == result["columns"][0]["rows"] == 1000


def test_large_data_are_described_by_a_sample_of_all_files(here, capsys, monkeypatch):
    for day in range(1, 4):
        rows = "".join(f"{u},{i},{t}\n" for u, i, _, t in events(300, day))
        (here / f"f{day}.csv").write_text(f"user,item,time\n{rows}")
    assert found(capsys, "f*.csv")["rows"] == 900
    monkeypatch.setattr(profile, "MOST_ROWS", 500)
    result = found(capsys, "f*.csv", "--force")
    assert (result["columns"][0]["rows"], result["rows"]) == (501, 501)
    assert result["evidence"][-1] == "all of this describes a sample of the rows"
    assert result["columns"][0]["distinct"] > 300  # It is of all files.


def test_of_a_large_file_a_sample_reads_the_start(here, monkeypatch):
    (here / "large.csv").write_bytes(b"user,item,time\n" + b"17,23,1500000000\n" * 4_500_000)
    n_bytes, readinto = [], Section.readinto

    def counted(section, buffer):
        n_bytes.append(readinto(section, buffer))
        return n_bytes[-1]

    monkeypatch.setattr(Section, "readinto", counted)
    layout = find_layout(["large.csv"], "interactions")
    sample = profile.Sample.of(layout, "interactions", 10, lambda n_bytes: None)
    assert (sum(batch.n_read for _, batch in sample.batches), sample.is_whole) == (10, False)
    assert sum(n_bytes) < 40 << 20


# --- the parts


@pytest.mark.parametrize(
    ("content", "delimiter", "names", "encoding"),
    [
        (b"user;item;time\n1;2,5;3\n4;5;6\n", ";", (), "utf-8"),
        (b"user\titem\n1\t2\n", "\t", (), "utf-8"),
        (b"1,2\n3,4\n", ",", ("c1", "c2"), "utf-8"),
        (b"a,b\nb,c\na,d\n", ",", ("c1", "c2"), "utf-8"),
        (b"user6,2020-01-01T00:00:00Z\nuser7,2020-01-02T00:00:00Z\n", ",", ("c1", "c2"), "utf-8"),
        (b"user6,item6\nuser7,item7\nuser6,item8\n", ",", ("c1", "c2"), "utf-8"),
        (b"user,event,item\n1,event,2\n", ",", (), "utf-8"),
        (b"user,item\na,b\nuser,item\nc,d\n", ",", (), "utf-8"),
        ("user,item\nÉ,2\nÈ,3\n".encode("latin-1"), ",", (), "latin-1"),
        ("user,item\n“x”,2\n".encode("cp1252"), ",", (), "cp1252"),
        ("user,item\nÉ,2\n".encode("utf-16"), ",", (), "utf-16"),
        ("user,item\nÉ,2\nÈ,3\n".encode() + b"\xff,4\n", ",", (), "utf-8"),
        (b'user|item\n"a|b"|2\n', "|", (), "utf-8"),
    ],
)
def test_a_dialect_is_detected_by_evidence(here, content, delimiter, names, encoding):
    (here / "f.txt").write_bytes(content)
    csv = find_layout(["f.txt"], "interactions").source.csv
    assert (csv.delimiter, csv.names, csv.encoding) == (delimiter, names, encoding)


def test_rows_over_several_lines_are_understood(here, capsys):
    rows = "".join(f'{k},{k % 9},"so ""good""\n\nthat, yes",15000000{k}\n' for k in range(10, 99))
    (here / "f.csv").write_text("user_id,item_id,review,time\n" + rows)
    result = found(capsys, "f.csv")
    assert result["evidence"][0] == "',' between fields: 90 of 90 rows have 4"
    assert n_good(here / "f.yaml") == (89, 89)


@pytest.mark.parametrize("title", ["Purchases of 2020", "Purchases, 2020\n", '"left open'])
def test_lines_above_the_header_are_left_out(here, capsys, title):
    (here / "f.csv").write_text(f"{title}\nuser,item,time\n" + "1,2,1500000000\n" * 30)
    result = found(capsys, "f.csv")
    assert result["csv"]["skip_rows"] == 1 + title.count("\n")
    assert columns(result) == {"user": "user", "item": "item", "timestamp": "time"}
    assert n_good(here / "f.yaml") == (30, 30)


def test_a_header_that_lacks_a_name_is_reported(here):
    (here / "f.csv").write_text("user,item\n" + "1,2,1500000000\n" * 30)
    with pytest.raises(RecsysError, match=r"R208.*begin with its header or a row: 3 fields"):
        find_layout(["f.csv"], "interactions")


def test_input_that_is_not_a_table_is_reported(here):
    (here / "f.txt").write_text("Dear all,\nthis is\na letter\nwithout\na table\n")
    with pytest.raises(RecsysError, match="R208"):
        find_layout(["f.txt"], "interactions")


def test_one_column_is_not_both_user_and_item(here, capsys):
    rows = "".join(f"{u},{i},{t}\n" for u, i, _, t in events(300))
    (here / "f.csv").write_text("who,what,time\n" + rows)
    assert check("f.csv", "--map", "user=who,item=who", "--out", "c.yaml") == 2
    assert "[R258] --map must name two columns" in capsys.readouterr().err
    assert not (here / "c.yaml").exists()
