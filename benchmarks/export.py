"""`python -m benchmarks.export`: exports a model whose users' table has any size.

The model folder is made without a training; the export is the real one, its gates
included. The lines of each `--rows`: `seconds`, and `peak memory`, the most that its
processes held together, shared pages counted once, over the bytes of the table.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

from typer import Option

from benchmarks.measure import module, print_line, run, watch, words_of
from recsys.system.process import stage_environment

_FLOAT_BYTES = 4
_ROWS = [1_000_000]


def main(
    rows: Annotated[list[int], Option(help="Of the users' table.")] = _ROWS,
    dim: int = 64,
    items: int = 1000,
    runs: int = 1,
    dir: Annotated[Path | None, Option(help="For model and bundle, instead of /tmp.")] = None,
) -> None:
    """Measures each size."""
    for n_rows in rows:
        with tempfile.TemporaryDirectory(dir=dir) as folder:
            measure(n_rows, dim, items, runs, Path(folder))


def measure(rows: int, dim: int, items: int, runs: int, folder: Path) -> None:
    """Measures one size."""
    world = module("benchmarks.worlds", "wide", *words_of(rows=rows, items=items, dim=dim))
    subprocess.run([*world, "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)
    paths = {"config": "export.json", "model": "model", "data": "data", "out": "bundle"}
    words = words_of(**{name: folder / path for name, path in paths.items()})
    command = module("recsys.bundles.export", *words)
    exports = [watch(command, stage_environment("tensorflow")) for _ in range(runs)]
    case, peaks = f"rows={rows} dim={dim} items={items}", [e.peak_rss_mib for e in exports]
    print_line("export", f"seconds {case}", [e.seconds for e in exports], "s", max(peaks))
    shares = [peak * 2**20 / (rows * dim * _FLOAT_BYTES) for peak in peaks]
    print_line("export", f"peak memory {case}", shares, "times the table", max(peaks))


if __name__ == "__main__":
    run(main)
