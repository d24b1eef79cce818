"""The renderer of results, and options from signatures."""

import dataclasses
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest
import typer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.testing import CliRunner

from recsys.cli.options import command_of
from recsys.cli.show import emit, show, value_text
from recsys.cli.terminal import Console
from recsys.errors import visible


def shown(result, width=80, *, is_terminal=False):
    file = io.StringIO()
    show(result, Console(file=file, force_terminal=is_terminal, width=width, color_system=None))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@dataclasses.dataclass
class Table:
    table: str
    rows: int
    bytes_per_device: int
    what_it_holds: str


class Collective(NamedTuple):
    op: str
    sent_bytes: int


TABLES = [Table("title_words", 12_345, 491_500, "every word of every title")]


def test_fields_are_aligned_and_records_are_tables_with_units():
    result = {
        "fits": True,
        "memory_bytes": 8_500_000,
        "floor_s": 756e-6,
        "left_out": None,
        "tables": TABLES,
        "sent": {"all-gather": {"bytes": 10}, "all-reduce": {"bytes": 2_000}},
        "received_bytes": {"all-gather": 10},
        "ops": (Collective("a", 1), Collective("b", 2)),
        "remarks": ["One.", "Two."],
    }
    assert shown(result) == [
        "fits          yes",
        "memory bytes  8.5 MB",
        "floor time    756 µs",
        "",
        "tables",
        "table          rows  bytes per device  what it holds",
        "────────────────────────────────────────────────────────────────",
        "title_words  12,345          491.5 kB  every word of every title",
        "",
        "sent",
        "             bytes",
        "──────────────────",
        "all-gather    10 B",
        "all-reduce  2.0 kB",
        "",
        "received bytes  all-gather 10 B",
        "",
        "ops",
        "op  sent bytes",
        "──────────────",
        "a          1 B",
        "b          2 B",
        "",
        "remarks  One.",
        "         Two.",
    ]


def test_columns_share_a_narrow_screen_and_no_word_is_cut():
    assert shown({"tables": TABLES}, 40) == [
        "tables",
        "                     bytes per  what it",
        "table          rows     device  holds",
        "────────────────────────────────────────",
        "title_words  12,345   491.5 kB  every",
        "                                word of",
        "                                every",
        "                                title",
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("relative", 0.0312, "+3.1 %"),
        ("interval", [0.1, 0.14], "0.100 … 0.140"),
        ("duplicate_share", 0.5, "50.0 %"),
        ("seconds", 200, "3 min 20 s"),
        ("seconds", "as text", "as text"),
        ("n", 1_000, "1,000"),
        ("loss", 0.12345, "0.123"),
        ("ids", ["a", 2], "a, 2"),
        ("ok", False, "no"),
        ("x", None, ""),
    ],
)
def test_a_name_says_the_unit(name, value, text):
    assert value_text(name, value).replace("\N{NO-BREAK SPACE}", " ") == text


_TEXTS = st.text("ab 1.,-\n\x1b\u202e\x9b漢", max_size=30)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS


@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.generate, Phase.shrink))
@given(
    st.dictionaries(st.from_regex("[a-z_]{1,12}", fullmatch=True), _SCALARS, max_size=4),
    st.lists(st.fixed_dictionaries({"a_b": _TEXTS, "n": st.integers()}), max_size=4),
    st.integers(30, 120),
)
def test_a_table_fits_and_nothing_is_lost(facts, rows, width):
    lines = shown({**facts, "rows of a table": rows}, width)
    text = re.sub(r"\s", "", "".join(lines))
    assert not {"\x1b", "\u202e", "\x9b"} & set(text)
    for value in facts.values():
        if isinstance(value, str):
            assert re.sub(r"\s", "", visible(value)) in text
    if rows:
        table = lines[lines.index("rows of a table") :]
        assert max(map(cell_len, table)) <= width
        signs = Counter("".join(table))
        assert signs >= Counter("".join(visible(row["a_b"]) for row in rows).replace(" ", ""))


def test_json_has_dataclasses_and_paths_and_people_see_their_part(capsys):
    emit({"tables": TABLES, "path": Path("a")}, as_json=True, people={"path": "b"})
    assert json.loads(capsys.readouterr().out) == {
        "tables": [dataclasses.asdict(TABLES[0])],
        "path": "a",
    }
    emit({"path": Path("a")}, as_json=False, people={"path": "b"})
    assert capsys.readouterr().out == "path  b\n"
    emit([1], as_json=True, people={"path": "b"}, beside=True)
    assert capsys.readouterr() == ("[1]\n", "path  b\n")


def command(
    files: list[Path],
    /,
    k: int = 10,
    n_rows: Annotated[int, typer.Option(min=1)] = 2,
    force: bool = False,
    arms: bool = True,
    names: Annotated[list[str] | None, typer.Option("--name", help="Own help.")] = None,
) -> None:
    """Do it: on
    two lines.

    Another paragraph.

    Args:
        files: Files to
            read.
        k: How many.
        n_rows: Rows.
        force: Overwrite.
        arms: Arms too.
    """
    typer.echo(json.dumps([[str(file) for file in files], k, n_rows, force, arms, names]))


def run(*words):
    app = typer.Typer()
    app.command()(command_of(command))
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["a"], [["a"], 10, 2, False, True, None]),
        (["a", "b", "-k", "3", "--force", "--no-arms"], [["a", "b"], 3, 2, True, False, None]),
        (
            ["a", "--n-rows", "5", "--name", "x", "--name", "y"],
            [["a"], 10, 5, False, True, ["x", "y"]],
        ),
    ],
)
def test_a_signature_makes_arguments_and_options(words, values):
    assert json.loads(run(*words).stdout) == values


@pytest.mark.parametrize(
    "words", [[], ["a", "--n-rows", "0"], ["a", "-k", "x"], ["a", "--no-force"]]
)
def test_bounds_and_types_hold(words):
    assert run(*words).exit_code == 2


def test_the_docstring_is_the_help():
    text = " ".join(run("--help").stdout.replace("│", " ").split())
    for words in ("Do it: on two lines.", "Another paragraph.", "Files to read.", "Own help."):
        assert words in text
    assert "Args" not in text


def test_an_option_without_help_is_an_error():
    def bare(n: int) -> None:
        """Do it."""

    with pytest.raises(KeyError, match="n"):
        command_of(bare)
