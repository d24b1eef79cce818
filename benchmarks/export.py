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

from benchmarks.measure import Watched, module, options_of, print_line, watch, words_of

BENCH = "export"
_FLOAT_BYTES = 4


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = options_of("export", __doc__)
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
    world = module("benchmarks.worlds", "wide", *words_of(**sizes, out=folder))
    subprocess.run(world, check=True, stdout=subprocess.DEVNULL)
    seen = [_export(folder) for _ in range(options.runs)]
    table_mib = rows * options.dim * _FLOAT_BYTES / 2**20
    case = f"rows={rows} dim={options.dim} items={options.items}"
    largest = [max(one.peak_mib.values()) for one in seen]
    print_line(BENCH, f"seconds {case}", [one.seconds for one in seen], "s", max(largest))
    shares = [peak / table_mib for peak in largest]
    print_line(BENCH, f"peak memory {case}", shares, "times the table", max(largest))
    together = [one.peak_rss_mib for one in seen]
    shares = [mib / table_mib for mib in together]
    print_line(BENCH, f"together {case}", shares, "times the table", max(together))


def _export(folder: Path) -> Watched:
    paths = {"config": "export.json", "model": "model", "data": "data", "out": "bundle"}
    words = words_of(**{name: folder / path for name, path in paths.items()})
    return watch([sys.executable, "-c", _EXPORT, *words])


# With the environment that the pipeline's exporter has.
_EXPORT = (
    "import json, sys; from recsys.system.process import run_stage, stage_environment;"
    " print(json.dumps(run_stage('recsys.bundles.export', sys.argv[1:],"
    " stage_environment('tensorflow'))))"
)


if __name__ == "__main__":
    main()
