"""Reads hostile files as `recsys check` and as a run does: a line of JSON for each.

A file that is read for too long ends the process, and one that takes too much memory fails.

Usage: python read_hostile.py FOLDER NAME...
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from hostile_files import COLUMNS, FILES, HostileFile

from recsys.cli import main
from recsys.config import CsvFormat, InteractionColumns, InteractionsConfig
from recsys.data.dead_letters import count_reasons
from recsys.data.interactions import interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.errors import RecsysError

LIMIT_S = 20
LIMIT_BYTES = 6 << 30
_NOW = 1_700_000_000


def read(file: HostileFile, path: Path) -> dict[str, Any]:
    """Reads a file as a run does."""
    config = InteractionsConfig(
        files=str(path).replace("[", "[[]"),
        columns=InteractionColumns(**COLUMNS),
        csv=CsvFormat(**file.csv),
    )
    letters: Counter[str] = Counter()
    n_good = 0
    try:
        for piece in plan_pieces(config, "interactions", interaction_columns(config)):
            for batch in read_piece(piece):
                good, rejected = parse_interactions(batch, config, _NOW, 0)
                n_good += good.num_rows
                letters.update(count_reasons(rejected))
    except RecsysError as error:
        return {"code": error.code, "text": str(error)}
    return {"code": "", "good": n_good, "letters": dict(letters)}


def check(path: Path) -> dict[str, Any]:
    """Looks at a file as `recsys check` does."""
    out, err = io.StringIO(), io.StringIO()
    config = path.parent / "written.yaml"
    pattern = str(path).replace("[", "[[]")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["check", pattern, "--out", str(config), "--force"])
        except SystemExit as ended:
            exit_code = ended.code or 0
    text = err.getvalue().strip()
    code = re.match(r"\[(R\d+)\]", text)
    return {
        "exit": exit_code,
        "code": code[1] if code else "",
        "text": text,
        "report": out.getvalue(),
        "wrote": config.exists(),
    }


def peak_bytes() -> int:
    """Returns the most memory held since the last call."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10


def _written(folder: Path, at: int, file: HostileFile) -> Path:
    folder = folder / str(at)
    folder.mkdir()
    return file.write(folder)


def measured(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns what came of a look, how long it took and what memory it held."""
    peak_bytes()
    began = time.monotonic()
    signal.alarm(LIMIT_S)
    try:
        result = look()
    except Exception as error:  # noqa: BLE001 - what a reader must not do
        result = {"code": type(error).__name__, "text": str(error)[:500]}
    signal.alarm(0)
    return {"seconds": time.monotonic() - began, "peak": peak_bytes(), **result}


def say(**line: Any) -> None:
    """Prints a line of JSON."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def run(folder: Path, names: list[str]) -> None:
    """Reads files one after the other."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    for at, name in enumerate(names):
        file = FILES[name]
        say(begins=name)
        path = _written(folder, at, file)
        say(name=name, way="read", **measured(functools.partial(read, file, path)))
        say(name=name, way="check", **measured(functools.partial(check, path)))
        if path.is_file() and not path.is_symlink():
            path.unlink()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:] or list(FILES))
