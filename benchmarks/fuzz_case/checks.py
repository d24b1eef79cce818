"""`recsys check` on files: it promises what a run reads, and prints nothing that steers."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path

from hypothesis import strategies as st

from benchmarks.fuzz_case.case import CRASH, Example, Finding, require, require_harmless
from benchmarks.fuzz_case.files import FORMATS, Files, Reading
from recsys.cli import main
from recsys.config_file import load_config
from recsys.errors import RecsysError


class Checks:
    """Files of all formats, as a person has them looked at."""

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns files."""
        return st.one_of([Files(format).strategy() for format in FORMATS])

    def take(self, example: Example, path: Path) -> None:
        """Looks at a file, and reads it with the config that was written."""
        config = path.parent / "written.yaml"
        words = ["check", str(path), "--out", str(config), "--force"]
        exit_code, told, errors = _run(words)
        require_harmless(told + errors)
        require(exit_code in (0, 1, 2), f"exit code {exit_code}: {errors}")
        require(bool(told or errors), "it said nothing")
        require(config.exists() or exit_code != 0, "exit code 0 and no config")
        if config.exists():
            config.unlink()
            _, told, _ = _run([*words, "--json"])
            _compare(json.loads(told), path, config)


def _compare(promised: dict[str, int], path: Path, config: Path) -> None:
    """Compares what was promised with what a run reads."""
    interactions = load_config(config).data.interactions
    try:
        reading = Reading(path, interactions, 64 << 20, int(time.time()))
    except RecsysError as error:
        require(False, f"a run refuses what `check` took: {error}")
        return
    read = {"rows": reading.n_read, "good": reading.n_distinct}
    said = {name: promised[name] for name in read}
    require(said == read, f"promised {said}, a run reads {read} of them")
    reading.require_sound()


def _run(words: list[str]) -> tuple[int, str, str]:
    """Returns the exit code, stdout and stderr of a command; a bug is a crash."""
    out, err = io.StringIO(), io.StringIO()
    exit_code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            exit_code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    if "[R900]" in err.getvalue():
        raise Finding(CRASH, err.getvalue().strip())
    return exit_code, out.getvalue(), err.getvalue()
