"""The record of runs and the page of all of them: newest first, and never fatal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report_run import Text, cells_of, text_of

from recsys.report.runs import MissingError, RunRecord, read_result, read_steps
from recsys.runs.index import write_index

SCRIPT = "<script>alert('pwned')</script>"
STEPS = ["InteractionGen", "DataGate", "Trainer", "RetrievalEvaluator", "Reporter"]
DAY = 86_400.0


def result(value: float, **changes: Any) -> dict[str, Any]:
    """Returns the `run.json` of a run that was blessed."""
    return {
        "name": "movies", "seconds": 97.4, "state": "finished", "query": "each_moment",
        "rejected": {"interactions": {"read": 100_836, "rejected": 12},
                     "items": {"read": 9_743, "rejected": 1}},
        "metrics": {"recall@10": value, "ndcg@10": value / 2, "mrr": value / 3},
        "intervals": {"recall@10": [value - 0.02, value + 0.02]},
        "baselines": {"popularity": {"recall@10": 0.084, "ndcg@10": 0.05, "mrr": 0.04}},
        "blessed_model": {"recall@10": 0.12, "ndcg@10": 0.06, "mrr": 0.04},
        "deciding": "recall@10", "blessed": True, "sentence": f"recall@10 is {value}; blessed",
        "pushed": "/serving/movies/1", "report": "artifacts/Reporter/report/23/report.html",
        **changes,
    }  # fmt: skip


class Root:
    """A root with records of runs.

    Args:
        path: Its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(
        self,
        day: int,
        content: dict[str, Any] | None,
        n_steps: int = 5,
        cached: Sequence[str] = (),
    ) -> RunRecord:
        """Writes the record of the run of a day; None: it was killed."""
        record = RunRecord(self.path / "runs" / f"2026-02-{day:02}T01-00-00.000000Z")
        started = 1_769_907_600.0 + day * DAY
        record.start("movies", STEPS, started)
        for step in STEPS[:n_steps]:
            record.step(step, "cached" if step in cached else "ran", "first run", 2.5, 0.0)
        if content is not None:
            record.end({**content, "started": started})
            if content.get("report"):
                report = self.path / content["report"]
                report.parent.mkdir(parents=True, exist_ok=True)
                report.touch()
        return record

    def page(self) -> str:
        """Returns the page of all runs."""
        path = write_index(self.path)
        assert path == self.path / "index.html"
        return path.read_text(encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """An empty root."""
    return Root(tmp_path)


def rows(page: str) -> list[str]:
    """Returns the text of each run, in order."""
    return [" ".join(row) for row in cells_of(page)[1:]]


def points(page: str) -> int:
    """Returns the number of models in the first chart."""
    chart = page.partition('<svg class="chart"')[2].partition("</svg>")[0]
    series = chart.rpartition('<g class="series s0">')[2]
    return series.partition('<g class="mark">')[2].partition("</g>")[0].count("<path")


def test_runs_are_newest_first_with_their_results(root: Root) -> None:
    root.record(1, result(0.12))
    root.record(2, result(0.126))
    root.record(3, result(0.1, blessed=False, pushed=None, sentence="too low; refused"))
    page = root.page()
    third, second, first = rows(page)
    assert first == (
        "2026-02-02 01:00 UTC report ✓ blessed version 1 recall@10 is 0.12; blessed"
        " 0.120 0.100 … 0.140 recall@10  1 min 37 s 13 of 110,579 rows"
    )
    assert "0.126 0.106 … 0.146 recall@10 +5.0 % 1 min 37 s" in second
    assert "✗ refused too low; refused" in third
    assert "−20.6 %" in third
    assert '<a href="artifacts/Reporter/report/23/report.html">report</a>' in page
    assert points(page) == 3
    (root.path / "artifacts/Reporter/report/23/report.html").unlink()
    assert "<a href" not in root.page()


@pytest.mark.parametrize("cached", [STEPS, ["Trainer"]])
def test_a_model_that_was_measured_before_is_no_new_point(root: Root, cached: list[str]) -> None:
    root.record(1, result(0.12))
    root.record(2, result(0.13))
    root.record(3, result(0.13), cached=cached)
    page = root.page()
    newest, second, _ = rows(page)
    assert points(page) == 2
    assert "cached: no new model" in newest
    assert "±0" not in newest
    assert "cached" not in second


def test_the_first_measurement_of_a_model_of_an_earlier_run_is_a_point(root: Root) -> None:
    root.record(1, result(0.12))
    failed = {"name": "movies", "state": "failed", "error": "no", "step": "RetrievalEvaluator"}
    root.record(2, failed, n_steps=3)
    root.record(3, result(0.13), cached=["Trainer"])
    assert points(root.page()) == 2


def test_failed_and_killed_runs_show_their_step(root: Root) -> None:
    error = "[R241] Too many rows were rejected."
    rejected = {"users": {"read": 10, "rejected": 9}}
    root.record(1, {"name": "movies", "seconds": 3.2, "rejected": rejected, "state": "failed",
                    "error": error}, 1)  # fmt: skip
    root.record(2, None, n_steps=2)
    killed, failed = rows(root.page())
    assert " ".join(failed.split()) == f"2026-02-02 01:00 UTC ! failed {error} 3.2 s 9 of 10 rows"
    assert "… interrupted in Trainer 2 of 5 steps ended" in killed


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b"\xff\x00", b'{"format": 9}',
     b'{"format": 1, "metrics": {"a": 1}, "rejected": {"x": 3}}'],
)  # fmt: skip
def test_damaged_records_are_named_and_left_out(root: Root, content: bytes) -> None:
    root.record(1, result(0.12))
    damaged = root.record(2, result(0.13))
    (damaged.folder / "run.json").write_bytes(content)
    (root.path / "runs" / "mine").mkdir()
    page = root.page()
    assert len(rows(page)) == 1
    text = text_of(page)
    assert "runs/2026-02-02T01-00-00.000000Z" in text
    assert "runs/mine" in text


def test_spans_and_the_start_of_the_training_are_shown(root: Root) -> None:
    late = {"name": "2026-01-30", "state": "read", "new": True, "late": True}
    broken = {"name": "2026-01-31", "state": "set_aside", "new": False, "late": False}
    root.record(1, result(0.12, carried=None, spans=[]))
    root.record(2, result(0.121, carried={"base": "x"}, spans=[late, broken]))
    page = root.page()
    second, first = rows(page)
    assert "new: 2026-01-30 late: 2026-01-30 set aside: 2026-01-31 report" in second
    assert "✓ blessed version 1 warm" in second
    assert "✓ blessed version 1 cold" in first
    assert set(re.findall(r'<g class="event (.*?)">', page)) == {"cold"}


@pytest.mark.parametrize(
    "changes",
    [
        {"deciding": "mrr"},
        {"query": "at_cut"},
        {"split": {"split": "random"}},
        {"name": "books"},
    ],
)
def test_only_comparable_runs_are_compared(root: Root, changes: dict[str, Any]) -> None:
    root.record(1, result(0.12))
    root.record(2, result(0.5, **changes))
    root.record(3, result(0.126))
    newest, other, _ = rows(root.page())
    assert "+5.0 %" in newest
    assert "%" not in other.partition("1 min")[0]


def test_the_page_escapes_all_data_and_loads_nothing(root: Root) -> None:
    assert "There are no records of runs yet." in root.page()
    poison = result(0.12, name=SCRIPT, sentence=SCRIPT, deciding=SCRIPT)
    poison |= {"metrics": {SCRIPT: 0.12}, "report": "javascript:alert(1)"}
    root.record(1, poison)
    root.record(2, poison)
    root.record(3, {"name": "movies", "error": SCRIPT + "\ud800"})
    page = root.page()
    parsed = Text(page)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 5
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe", "object"}
    for _, attributes in parsed.tags:
        assert not (attributes.get("href") or "").startswith(("javascript:", "http", "/"))


def test_a_record_reads_back_as_written(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "runs" / "1")
    record.start("movies", ["A", "B"], 5.0)
    record.step("A", "ran", "first run\nof two", 1.23456, 6.0)
    steps = read_steps(record.folder)
    assert (steps.name, steps.planned, steps.started) == ("movies", ["A", "B"], 5.0)
    [step] = steps.steps
    assert (step.name, step.state, step.reason, step.seconds) == (
        "A", "ran", "first run\nof two", 1.235
    )  # fmt: skip
    assert read_result(record.folder) is None
    record.end({"name": "movies"})
    with pytest.raises(ValueError, match="nan"):
        record.end({"seconds": float("nan")})
    assert read_result(record.folder) == {"format": 1, "name": "movies"}
    with pytest.raises(MissingError, match="no record of its steps"):
        read_steps(tmp_path)
