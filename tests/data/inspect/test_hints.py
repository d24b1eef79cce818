"""`recsys check`: hints are tried before they are printed, and none leads astray."""

import json
import shlex
from pathlib import Path

import pytest
from checking import found
from commands import run_main

START = 1_600_000_000


pytestmark = pytest.mark.usefixtures("here")


def write(name, rows, header=None):
    lines = [",".join(map(str, row)) for row in rows]
    Path(name).write_text("\n".join([header, *lines] if header else lines) + "\n")


def test_a_hint_is_one_that_gives_a_config(capsys):
    # The first column of many values that repeat is no id of the catalogue; the third one is.
    rows = [(n, n % 41, f"x{n % 30}", START + 9000 * n) for n in range(400)]
    write("f.csv", rows, "n,who,what,ts")
    result = found(capsys, "f.csv")
    again = shlex.split(result["try"])
    assert again[:4] == ["recsys", "check", "f.csv", "--map"]
    assert found(capsys, *again[2:])["config"] == "out.yaml"


def test_the_next_column_is_tried_where_the_first_would_reject_rows(capsys):
    # `b` is likelier by its name's place; half of it is empty.
    rows = [(n % 41, f"b{n % 31}" if n % 2 else "", f"c{n % 29}", START + n) for n in range(400)]
    write("f.csv", rows, "user,b,c,ts")
    assert found(capsys, "f.csv")["try"] == "recsys check f.csv --map item=c"


def test_no_hint_is_printed_where_none_works(capsys):
    rows = [(n % 41, f"{START + n}", f"2020-01-0{n % 9}", n / 7) for n in range(400)]
    write("f.csv", rows, "user,ts,day,value")
    result = found(capsys, "f.csv")
    assert (result["config"], result["try"]) == (None, None)


def test_a_hint_keeps_what_map_said(capsys):
    rows = [(n % 41, f"c{n % 29}", "soon", START + n) for n in range(400)]
    write("f.csv", rows, "user,c,ts,epoch")
    words = shlex.split(found(capsys, "f.csv", "--map", "timestamp=none")["try"])
    assert words[-1] == "timestamp=none,item=c"
    assert found(capsys, *words[2:])["config"] == "out.yaml"


def cells(n_users, n_items, values):
    return [[f"{values[(7 * u + 3 * i) % len(values)]}" for i in range(n_items)]
            for u in range(n_users)]  # fmt: skip


@pytest.mark.parametrize(
    "header",
    ["user," + ",".join(f"movie_{k}" for k in range(30)), "user," + ",".join(map(str, range(30))),
     "," + ",".join(f"Movie {k}" for k in range(30)), None],
    ids=["names", "ids", "titles", "none"],
)  # fmt: skip
@pytest.mark.parametrize("values", [["", 1, 2, 3, 4, 5], [0, 1], [99, -7.82, 8.79, 1.5]])
def test_a_wide_matrix_is_called_one(capsys, header, values):
    rows = [[u % 60, *row] for u, row in enumerate(cells(90, 30, values))]
    write("wide.csv", rows, header)
    result = found(capsys, "wide.csv")
    assert (result["config"], result["try"]) == (None, None)
    assert [one for one in result["undecided"] if "matrix" in one]


def test_seconds_win_over_a_text_of_local_time(capsys):
    rows = [
        (n % 41, f"c{n % 29}", f"2020-09-{n % 28 + 1:02d} 08:00:{n % 60:02d}.5", START + 9000 * n)
        for n in range(400)
    ]
    write("f.csv", rows, "user_id,item_id,time,timestamp")
    result = found(capsys, "f.csv")
    assert result["roles"]["timestamp"]["column"] == "timestamp"
    assert result["timestamp_unit"] == "seconds"


def test_a_format_alone_finds_its_column(capsys):
    rows = [(n % 41, f"c{n % 29}", f"{n % 28 + 1}~9~2020") for n in range(400)]
    write("f.csv", rows, "user,item,when")
    assert "when" not in json.dumps(found(capsys, "f.csv")["roles"])
    result = found(capsys, "f.csv", "--map", "timestamp_format=%d~%m~%Y")
    assert result["roles"]["timestamp"]["column"] == "when"
    assert result["timestamp_format"] == "%d~%m~%Y"
    assert (result["good"], result["rejected"]) == (400, {})


@pytest.mark.parametrize(
    "word", ["timestamp_format=%H:%M", "timestamp_format=%d/%m/%Y", "timestamp_format=%d %d %m %Y"]
)
def test_a_format_that_fits_nothing_is_refused(capsys, word):
    write("f.csv", [(n % 41, f"c{n % 29}", START + n) for n in range(400)], "user,item,ts")
    assert run_main("check", "f.csv", "--map", word) == 2
    assert "[R258]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("users", "items", "said"),
    [(1, 9, "1 user and 9 items: a run would stop"), (9, 1, "1 item: a run would stop"),
     (2, 30, "2 users: a run would train"), (30, 30, None)],
)  # fmt: skip
def test_too_few_users_or_items_are_said(capsys, users, items, said):
    rows = [(f"u{n % users}", f"i{n % items}", START + 9000 * n) for n in range(200)]
    write("f.csv", rows, "user,item,ts")
    remarks = [one for one in found(capsys, "f.csv")["remarks"] if "All positives" in one]
    assert bool(remarks) == (said is not None)
    if said:
        assert said in remarks[0]
