"""The parts of the report that tell of one night among many: spans, and what was carried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.page import read_part, render
from recsys.report.spans import read_spans, spans_in_words, spans_of
from recsys.report.trained import read_carried

SCRIPT = "<script>alert(1)</script>"


def artifacts_of(root: Path, spans: Any = None, training: Any = None) -> Artifacts:
    letters, model = root / "letters", root / "model"
    for folder in (letters, model):
        folder.mkdir()
    if spans is not None:
        (letters / "spans.json").write_text(json.dumps(spans))
    if training is not None:
        (model / "training.json").write_text(json.dumps(training))
    return Artifacts({}, {"interactions": letters}, root, model, root, None, None)


def span(day: int, state: str = "reused", **more: Any) -> dict[str, Any]:
    told = {"span": day, "name": f"2026-01-{day:02}", "state": state, "rows": 1200, "rejected": 0}
    return {**told, "new": False, "late": False, "reason": None, **more}


def test_the_newest_spans_are_shown_and_every_odd_one(tmp_path):
    spans = [span(1, "set_aside", rejected=400, reason=SCRIPT), *map(span, range(2, 40))]
    spans.append(span(40, "read", new=True))
    found = read_spans(artifacts_of(tmp_path, spans))
    assert found is not None
    assert found.summary == "40 spans; new: 2026-01-40; set aside: 2026-01-01"
    assert [row.name for row in found.rows[:2]] == ["2026-01-40", "2026-01-39"]
    assert len(found.rows) == 32
    odd = found.rows[-1]
    assert (odd.name, odd.words, odd.is_odd, odd.rejected) == (
        "2026-01-01",
        "set aside",
        True,
        "400",
    )
    assert (found.rows[0].words, found.rows[1].words) == ("new, read", "read before")


def test_without_spans_nothing_is_said(tmp_path):
    assert read_spans(artifacts_of(tmp_path)) is None
    assert spans_in_words(None) == []


@pytest.mark.parametrize("content", ["{", "[3]", '{"a": 1}'])
def test_damaged_spans_are_said_in_words(tmp_path, content):
    artifacts = artifacts_of(tmp_path)
    (tmp_path / "letters/spans.json").write_text(content)
    assert read_part(lambda: read_spans(artifacts)).missing


def test_many_spans_of_a_kind_are_counted():
    spans = [span(day, "read", new=True, late=day < 5) for day in range(1, 8)]
    assert spans_in_words(spans_of(spans)) == ["7 new", "late: 2026-01-01, 2026-01-02 and 2 more"]


CARRIED = {
    "base": "/models/7",
    "trained_until": 1_769_904_000,
    "steps_before": 4800,
    "warm_starts": 3,
    "carried": {"items": {"rows": 100, "kept": 90, "new": 8, "reset": 2, "neighbours": 6,
                          "dropped": 1}},
}  # fmt: skip


def test_what_was_carried_over_is_shown_by_table(tmp_path):
    found = read_carried(artifacts_of(tmp_path, training={"warm_start": CARRIED}))
    (table,) = found.tables
    assert (table.name, table.kept, table.new, table.reset) == ("items", "90", "8", "2")
    assert (table.share, table.neighbours, table.dropped) == ("90.0\N{NO-BREAK SPACE}%", "6", "1")
    assert ("steps before", "4,800") in found.facts
    assert ("went on from", "/models/7") in found.facts


def test_a_training_that_began_anew_says_why(tmp_path):
    found = read_carried(artifacts_of(tmp_path, training={"warm_start": None, "cold": "Too new."}))
    assert (found.facts, found.tables, found.sentence) == ([], [], "Too new.")


def test_no_training_has_nothing_to_show(tmp_path):
    with pytest.raises(MissingError):
        read_carried(artifacts_of(tmp_path))


def test_both_parts_are_drawn_and_escaped(tmp_path):
    spans = [span(1, "set_aside", reason=SCRIPT), span(2, SCRIPT)]
    carried = {**CARRIED, "base": SCRIPT, "carried": {SCRIPT: CARRIED["carried"]["items"]}}
    artifacts = artifacts_of(tmp_path, spans, {"warm_start": carried})
    nothing = read_part(lambda: {}["missing"])
    page = "".join(
        render(
            f"{name}.jinja",
            spans=read_part(lambda: read_spans(artifacts)),
            carried=read_part(lambda: read_carried(artifacts)),
            **dict.fromkeys(("training", "sharding", "sources", "split", "growths"), nothing),
            features=nothing,
        )
        for name in ("data", "training")
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert "What was carried over" in page
    assert "rows kept" in page
    assert "2 spans; set aside: 2026-01-01." in page
