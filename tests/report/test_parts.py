"""Figures and ticks, each beside literal numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from recsys import formats
from recsys.report.charts import (
    Estimate,
    draw_interval,
    shared_range,
    ticks,
)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (formats.count, 12345, "12,345"),
        (formats.count, None, "–"),
        (formats.figure, 0.11804, "0.118"),
        (formats.figure, 12345.6, "12,346"),
        (formats.figure, float("nan"), "–"),
        (formats.figure, 10**400, "–"),
        (formats.score, 0.4, "0.40"),
        (formats.share, 0.0871, "8.7 %"),
        (formats.share, 0.0001, "< 0.1 %"),
        (formats.size, 3_412_881, "3.4 MB"),
        (formats.duration, 0.42, "0.4 s"),
        (formats.duration, 7500, "2 h 5 min"),
        (formats.moment, 1_463_616_000, "2016-05-19"),
        (formats.moment, 1_463_616_000 + 3_660, "2016-05-19 01:01 UTC"),
        (formats.moment, 1e20, "1e+20 s since 1970"),
        (formats.change, 0.0312, "+3.1 %"),
        (formats.change, 1e-6, "+0.0001 %"),
        (formats.change, 1e-16, "±0 %"),
        (formats.change_span, [0.019, 0.044], "+1.9 … +4.4 %"),
        (formats.change_span, [-0.019, None], "–"),
        (formats.change_span, [0.0, 1e-9], "±0 %"),
        (formats.span, (0.1076, 0.1293), "0.108 … 0.129"),
    ],
)
def test_numbers_read_well(write: Any, value: Any, text: str) -> None:
    # Figure and unit stay on one line.
    assert write(value).replace("\N{NO-BREAK SPACE}", " ") == text


@pytest.mark.parametrize(
    ("low", "high", "about", "expected"),
    [
        (0, 2036, 6, [0, 500, 1000, 1500, 2000, 2500]),
        (2.55, 5.52, 4, [2, 3, 4, 5, 6]),
        (0, 1, 4, [0, 0.25, 0.5, 0.75, 1]),
        (7, 7, 2, [6, 7, 8]),
        (-3e-5, 2e-5, 5, [-3e-5, -2e-5, -1e-5, 0, 1e-5, 2e-5]),
    ],
)
def test_ticks_are_round_and_enclose(
    low: float, high: float, about: int, expected: list[float]
) -> None:
    assert ticks(low, high, about) == pytest.approx(expected)


def test_one_scale_holds_all_figures_and_zero_but_no_interval_without_bounds() -> None:
    calm = [Estimate(0.1, 0.05, 0.15), Estimate(0.2, 0.15, 0.25), Estimate(0.3, 0.2, 0.4)]
    scale = shared_range(calm)
    assert (scale.low, scale.high) == (0.0, 0.4)
    wild = shared_range([*calm, Estimate(0.1, -50.0, 50.0)])
    assert wild.low == pytest.approx(-0.9)
    assert wild.high == pytest.approx(1.2)
    assert shared_range([]).low < shared_range([]).high


@pytest.mark.parametrize(
    ("estimate", "side", "arrows"),
    [
        (Estimate(0.1, 0.05, 0.15), "better", 0),
        (Estimate(-0.1, -0.2, -0.05), "worse", 0),
        (Estimate(0.1, -0.05, 0.15), "level", 0),
        (Estimate(0.1, -50.0, 50.0), "level", 2),
        (Estimate(9.0, 8.0, 50.0), "better", 1),
    ],
)
def test_an_interval_has_the_side_of_its_ends(estimate: Estimate, side: str, arrows: int) -> None:
    scale = shared_range([Estimate(0.0, -0.2, 0.2)])
    drawn = str(draw_interval(estimate, scale, "<words>"))
    assert f'<g class="{side}">' in drawn
    assert drawn.count('class="arrow"') == arrows
    dots = re.findall(r'cx="([\d.]+)"', drawn)
    assert [float(x) for x in dots] == [scale.at(estimate.value)] * scale.holds(estimate.value)
    assert "&lt;words&gt;" in drawn


def test_a_table_in_a_notebook_has_words_at_the_left_and_escapes_them() -> None:
    drawn = formats.html_table(("id", "score"), [("<a>", 0.5)], "A & B", texts=("id",))
    assert "A &amp; B" in drawn
    assert "<td style='text-align:left'>&lt;a&gt;</td><td>0.5000</td>" in drawn
