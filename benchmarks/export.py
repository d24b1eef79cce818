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

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.export_case.memory import Memory, watch
from benchmarks.measure import print_line

BENCH = "export"
_FLOAT_BYTES = 4


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[1_000_000], help="of the users' table")
    add("--dim", type=int, default=64, help="width of the embeddings [floats]")
    add("--items", type=int, default=1000)
    add("--runs", type=int, default=1)
    add("--dir", type=Path, help="where model and bundle lie meanwhile; temporary by default")
    options = parser.parse_args(words)
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            measure(options, rows, Path(folder))


def measure(options: argparse.Namespace, rows: int, folder: Path) -> None:
    """Measures one size."""
    sizes = {"rows": rows, "items": options.items, "dim": options.dim}
    make = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    world = [sys.executable, "-m", "benchmarks.export_case.world", *make, "--out", str(folder)]
    subprocess.run(world, check=True, stdout=subprocess.DEVNULL)
    seen = [_export(folder) for _ in range(options.runs)]
    table = rows * options.dim * _FLOAT_BYTES
    case = f"rows={rows} dim={options.dim} items={options.items}"
    largest = [max(one.peak_bytes.values()) for one in seen]
    mib = max(largest) / 2**20
    print_line(BENCH, f"seconds {case}", [one.seconds for one in seen], "s", mib)
    shares = [peak / table for peak in largest]
    print_line(BENCH, f"peak memory {case}", shares, "times the table", mib)
    together = [one.tree_bytes / table for one in seen]
    mib = max(one.tree_bytes for one in seen) / 2**20
    print_line(BENCH, f"together {case}", together, "times the table", mib)


def _export(folder: Path) -> Memory:
    words = {"config": "export.json", "model": "model", "data": "data", "out": "bundle"}
    paths = [word for name, path in words.items() for word in (f"--{name}", str(folder / path))]
    command = [sys.executable, "-c", _EXPORT, *paths]
    return watch(command)


# With the environment that the pipeline's exporter has.
_EXPORT = (
    "import json, sys; from recsys.process import run_stage, stage_environment;"
    " print(json.dumps(run_stage('recsys.bundles.export', sys.argv[1:],"
    " stage_environment('tensorflow'))))"
)


if __name__ == "__main__":
    main()
