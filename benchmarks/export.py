"""`python -m benchmarks.export`: exports a model whose users' table has any size.

The model folder is made without a training; the export is the real one, its gates
included. The lines of each `--rows`:

- `seconds`: wall time of the export [s];
- `peak memory`: the most that any one of its processes held, as the kernel keeps it
  (`VmHWM`), by the bytes of the table;
- `together`: the most that all of them held at once, shared pages counted once (PSS), by
  the bytes of the table.
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
    case = f"rows={rows} dim={dim} items={items}"
    largest = [max(export.peak_mib.values()) for export in exports]
    print_line("export", f"seconds {case}", [e.seconds for e in exports], "s", max(largest))
    together = [export.peak_rss_mib for export in exports]
    table_mib = rows * dim * _FLOAT_BYTES / 2**20
    for name, peaks in {"peak memory": largest, "together": together}.items():
        shares = [peak / table_mib for peak in peaks]
        print_line("export", f"{name} {case}", shares, "times the table", max(peaks))


if __name__ == "__main__":
    run(main)
