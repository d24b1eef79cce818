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
import math
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LABELS = {
    "ours": "recsys",
    "torchrec": "TorchRec (fused)",
    "torch": "PyTorch (sparse)",
    "tfrs": "TF Recommenders",
    "keras": "Keras on JAX",
    "keras_rs": "keras-rs on JAX",
}
# Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = {
    "ours": "#D55E00",
    "torchrec": "#0072B2",
    "torch": "#56B4E9",
    "tfrs": "#009E73",
    "keras": "#000000",
    "keras_rs": "#CC79A7",
}
_MARKERS = {"ours": "o", "torchrec": "s", "torch": "D", "tfrs": "^", "keras": "v", "keras_rs": "P"}
_CASE = re.compile(r"(\w+) rows=(\d+)")
_LABELS_IN_HEIGHT = 16  # As many fit over one another.
_ROUNDS = 100
_TICKS_MS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)

Point = tuple[int, float, float, float]
"""Rows, and the median, least and most of the rounds [ms]."""


def curves(lines: Iterable[str]) -> dict[str, list[Point]]:
    """Returns the points of each competitor on one device, by rows; of two, the later one."""
    found: dict[str, dict[int, Point]] = {}
    for line in lines:
        figure = json.loads(line)
        case = _CASE.fullmatch(figure["case"])
        if case and figure["bench"] == "embedding_step" and figure["unit"] == "ms":
            point = (int(case[2]), figure["median"], figure["min"], figure["max"])
            found.setdefault(case[1], {})[point[0]] = point
    return {who: sorted(points.values()) for who, points in found.items()}


def label_heights(ends: Mapping[str, float], gap: float) -> dict[str, float]:
    """Returns where to write each label, near its curve's end and clear of the others [ms].

    Args:
        ends: Where the curves end [ms].
        gap: Least factor between one label's height and the next one's.
    """
    order = sorted(ends, key=lambda who: ends[who])
    at = [math.log(ends[who]) for who in order]
    for _ in range(_ROUNDS):  # Those that are too close push each other apart.
        for i in range(len(at) - 1):
            missing = math.log(gap) - (at[i + 1] - at[i])
            if missing > 0:
                at[i], at[i + 1] = at[i] - missing / 2, at[i + 1] + missing / 2
    return {who: math.exp(height) for who, height in zip(order, at, strict=True)}


def draw(found: Mapping[str, list[Point]], out: Path) -> None:
    """Draws `found` into the PNG `out`."""
    import matplotlib as mpl  # type: ignore[import-not-found]

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 13, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(7.2, 5.4), dpi=200, layout="constrained")
    for who, points in found.items():
        _curve(axes, who, points)
    times = [ms for points in found.values() for point in points for ms in point[1:]]
    low, high = min(times) / 1.4, max(times) * 1.4
    gap = (high / low) ** (1 / _LABELS_IN_HEIGHT)
    heights = label_heights({who: points[-1][1] for who, points in found.items()}, gap)
    for who, height in heights.items():
        rows, end = found[who][-1][:2]
        weight = "bold" if who == "ours" else "normal"
        text = f"{LABELS.get(who, who)}  {end:,.0f} ms"
        style = {"color": COLOURS.get(who, "#555555"), "weight": weight, "va": "center"}
        axes.text(rows * 1.25, height, text, **style)
    _frame(axes, sorted({point[0] for points in found.values() for point in points}), low, high)
    figure.savefig(out)


def _curve(axes: Any, who: str, points: list[Point]) -> None:
    rows, median, least, most = zip(*points, strict=True)
    colour, is_ours = COLOURS.get(who, "#555555"), who == "ours"
    axes.fill_between(rows, least, most, color=colour, alpha=0.15, linewidth=0)
    axes.plot(
        rows,
        median,
        color=colour,
        marker=_MARKERS.get(who, "."),
        markersize=8 if is_ours else 6,
        linewidth=3.5 if is_ours else 1.8,
        zorder=3 if is_ours else 2,
    )


def _frame(axes: Any, rows: list[int], low: float, high: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(rows, [_short(n) for n in rows], minor=False)
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    ticks = [ms for ms in _TICKS_MS if low <= ms <= high]
    axes.set_yticks(ticks, [f"{ms:,}" for ms in ticks])
    axes.set_yticks([], minor=True)
    axes.hlines(ticks, rows[0], rows[-1], color="#DDDDDD", linewidth=0.8, zorder=0)
    # Room for the labels on the right.
    axes.set_xlim(rows[0] / 1.3, rows[-1] * (rows[-1] / rows[0]) ** 0.62 * 1.3)
    axes.set_ylim(low, high)
    axes.set_xlabel("rows of each table", loc="left")
    axes.set_title("Training step [ms], two towers, batch 4,096, 2 CPU cores", loc="left", size=13)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _short(n: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:g} {letter}"
    return str(n)


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
