# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib==3.10.7"]
# ///
"""Draws the step time against the rows, from the lines of `benchmarks.embedding_step`.

`uv run --script benchmarks/plot_step.py figures.jsonl docs/images/step_time.png`
(`-` reads stdin).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

# Okabe and Ito's colours, which colour-blind readers tell apart.
STYLES = {
    "ours": ("recsys", "#D55E00", "o"),
    "torchrec": ("TorchRec (fused)", "#0072B2", "s"),
    "torch": ("PyTorch (sparse)", "#56B4E9", "D"),
    "tfrs": ("TF Recommenders", "#009E73", "^"),
    "keras": ("Keras on JAX", "#000000", "v"),
    "keras_rs": ("keras-rs on JAX", "#CC79A7", "P"),
}
"""Name, colour and marker of each competitor."""
_CASE = re.compile(r"(\w+) rows=(\d+)")

Point = tuple[int, float, float, float]
"""Rows, and the median, least and most of the rounds [ms]."""


def curves(lines: Iterable[str]) -> dict[str, list[Point]]:
    """Returns the points of each competitor on one device, by rows; of two, the later one."""
    points: dict[str, dict[int, Point]] = {}
    for line in lines:
        figure = json.loads(line)
        case = _CASE.fullmatch(figure["case"])
        if case and figure["bench"] == "embedding_step" and figure["unit"] == "ms":
            point = (int(case[2]), figure["median"], figure["min"], figure["max"])
            points.setdefault(case[1], {})[point[0]] = point
    return {who: sorted(by_rows.values()) for who, by_rows in points.items()}


def draw(of_all: Mapping[str, list[Point]], out: Path) -> None:
    """Draws the curves into the PNG `out`, the slowest first in its legend."""
    import matplotlib as mpl  # type: ignore[import-not-found]

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter, LogLocator, ScalarFormatter  # type: ignore[import-not-found]

    plt.rcParams.update({"font.size": 13, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(7.2, 5.4), dpi=200, layout="constrained")
    for who, points in sorted(of_all.items(), key=lambda curve: -curve[1][-1][1]):
        rows, median, least, most = zip(*points, strict=True)
        name, colour, marker = STYLES.get(who, (who, "#555555", "."))
        width = 3.5 if who == "ours" else 1.8
        axes.fill_between(rows, least, most, color=colour, alpha=0.15, linewidth=0)
        label = f"{name}  {median[-1]:,.0f} ms"
        axes.plot(rows, median, color=colour, marker=marker, linewidth=width, label=label)
    axes.set(xscale="log", yscale="log", xlabel="rows of each table")
    axes.set_title("Training step [ms], two towers, batch 4,096, 2 CPU cores", loc="left", size=13)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.grid(axis="y", color="#DDDDDD")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(out)


def main() -> None:
    """Reads the lines and draws them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", help="file of the benchmark's lines, or -")
    parser.add_argument("out", type=Path, help="the PNG")
    options = parser.parse_args()
    text = sys.stdin.read() if options.lines == "-" else Path(options.lines).read_text("utf-8")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(curves(text.splitlines()), options.out)


if __name__ == "__main__":
    main()
