"""Control characters in data, names and paths never reach a terminal; JSON keeps them."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from commands import run_main
from places import ROOT
from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import Console
from recsys.errors import RecsysError
from recsys.serving.recommendations import Item, Recommendations, ScoredItem

_HOSTILE = "\x1b[31mred\x1b]0;owned\x07 \x9b2J \u202egnp.exe \u2066x [bold]b[/bold] :smile: \udcff"
_COMMANDS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]"
)


def see_plain(text):
    assert text
    assert not _COMMANDS.search(text), ascii(_COMMANDS.search(text))


def run(capsys, *arguments):
    run_main(*arguments)
    printed = capsys.readouterr()
    return printed.out, printed.err


class Answering:
    """A recommender whose every text is hostile."""

    example_users = (_HOSTILE,)

    def recommend(self, user, *, k, **_):
        items = [ScoredItem(_HOSTILE, _HOSTILE, 0.5)]
        return Recommendations(user, False, "popularity", [Item("7", _HOSTILE)], items)


@pytest.fixture
def answering(monkeypatch, tmp_path):
    monkeypatch.setattr("recsys.serving.recommendations.load_bundle", lambda _: Answering())
    monkeypatch.setattr("recsys.bundles.publishing.latest", lambda folder: tmp_path)
    monkeypatch.setattr("recsys.cli.serving.serving_folder", lambda config, root: tmp_path)


def test_titles_and_ids_are_recommended_without_commands(capsys, answering):
    out, err = run(capsys, "recommend", "--user", "u\x1b[2J")
    see_plain(out)
    see_plain(err)
    joined = re.sub(r"\s+", "", out)
    assert r"\x1b[31mred" in joined
    assert "[bold]b[/bold]" in joined


def test_json_has_titles_and_ids_as_they_are(capsys, answering):
    out, _ = run(capsys, "recommend", "--user", "7", "--json")
    assert json.loads(out)["items"][0]["title"] == _HOSTILE


@pytest.mark.parametrize("stderr", [False, True])
def test_a_console_takes_nothing_but_its_own_styles_as_commands(stderr):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200, stderr=stderr)
    table = Table(title=_HOSTILE)
    table.add_column(_HOSTILE)
    table.add_row(_HOSTILE)
    console.print(table)
    console.print(_HOSTILE)
    console.print(Text(_HOSTILE, "red"))
    printed = file.getvalue()
    see_plain(re.sub(r"\x1b\[[0-9;]*m", "", printed))
    assert "\x1b[31mred" not in printed
    assert "[bold]b[/bold] :smile:" in printed


def printed(show, width, *, is_terminal=True):
    file = io.StringIO()
    show(Console(file=file, force_terminal=is_terminal, width=width, color_system=None))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_terminal_breaks_a_line_at_spaces_and_never_in_a_path():
    path = "/a/folder/whose/name/is/longer/than/the/line/report.html"
    line = f"Wrote 4 of 12 files to {path}."
    assert printed(lambda console: console.write_line(line, head="  "), 20) == [
        "  Wrote 4 of 12",
        "  files to",
        f"  {path}.",
    ]
    assert printed(lambda console: console.write_line(line), 20, is_terminal=False) == [line]


def test_what_follows_a_break_is_under_the_text():
    head = Text.assemble(("✓", "green"), " Trainer  ")
    line = "ran: its inputs `data` and `model` changed"
    assert printed(lambda console: console.write_line(line, head=head), 32) == [
        "✓ Trainer  ran: its inputs",
        "           `data` and `model`",
        "           changed",
    ]


def test_an_error_is_one_line_without_commands():
    see_plain(str(RecsysError("R201", f"{_HOSTILE} must\nbe.", "Mend it.", _HOSTILE)))
    assert "\n" not in str(RecsysError("R201", "a\nb.", "c."))


def test_check_prints_names_values_and_paths_without_commands(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a\x1b[31m\u202e.csv"
    name = "\x1b[31mstrange\x1b[2J"
    rows = "".join(f"u{k},i{k % 7},{1_600_000_000 + k},{name}\n" for k in range(60))
    path.write_text(f"user,item,time,{name}\n{rows}u1,i1,{name},x\n")
    items = tmp_path / "items\x1b[1m.csv"
    items.write_text(f"item,title,{name}\n" + "".join(f"i{k},{name} {k},1\n" for k in range(7)))
    config = tmp_path / "out\x1b[31m.yaml"
    out, _ = run(capsys, "check", str(path), "--items", str(items), "--out", str(config))
    assert config.exists()
    see_plain(out)
    undecided = tmp_path / "other.csv"
    undecided.write_text(
        f"{name},{name}2,c\n" + "".join(f"{name}{k},x{k},y{k}\n" for k in range(30))
    )
    out, _ = run(capsys, "check", str(undecided))
    see_plain(out)
    assert "undecided" in out


_SHIPPED = ROOT / "configs" / "movielens_small.yaml"


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", b"caf\xe9\x1b[31m.csv"],
        ["plan", b"caf\xe9\x1b[31m.yaml"],
        ["plan", _SHIPPED, "--set", b"name=\xe9\x1b[31m"],
        ["runs", "--root", b"caf\xe9\x1b[31m"],
        ["recommend", "--user", "1", "--root", b"caf\xe9\x1b[31m"],
    ],
)
def test_a_name_that_is_no_utf8_is_one_sentence(tmp_path, arguments):
    name = next(word for word in arguments if isinstance(word, bytes))
    (tmp_path / os.fsdecode(name)).write_text("user,item,time\nu,i,1600000000\n")
    ended = subprocess.run(
        [sys.executable, "-m", "recsys", *arguments],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    text = (ended.stderr + ended.stdout).decode()
    assert ended.returncode in (0, 1, 2)
    assert "Traceback" not in text
    assert "R900" not in text
    see_plain(text)
