"""Every page that is written has a content security policy that it keeps itself.

A policy is met as a browser meets it: what it doesn't allow by a hash isn't there.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from report_evaluation import TITLES, evaluation
from report_run import VALIDATION, Run, Text

from recsys.report.run_figures import write_statistics
from recsys.report.runs import RunRecord
from recsys.runs.index import write_index

SCRIPT = "<script>alert('pwned')</script><img src=https://example.org/a.png>"


def report(folder: Path) -> Path:
    run = Run(folder)
    run.write(TITLES, evaluation())
    run.report()
    return run.root / "report" / "report.html"


def index(folder: Path) -> Path:
    record = RunRecord(folder / "runs" / "2026-02-01T01-00-00.000000Z")
    record.start("movies", ["Trainer"], 1_770_000_000.0)
    record.step("Trainer", "ran", "first run", 2.5, 0.0)
    record.end({"name": "movies", "state": "failed", "error": SCRIPT, "started": 1_770_000_000.0})
    return write_index(folder)


def statistics(folder: Path) -> Path:
    splits = VALIDATION["interactions"]["splits"]
    text = {"name": SCRIPT, "kind": "text", "missing": 0.5, "values": 4, "unique": 2}
    odd = {"rows": 4, "columns": [{**text, "top": [[SCRIPT, 0.75], ["b", 0.25]]}]}
    page = folder / "statistics.html"
    write_statistics(page, "interactions", {**splits, "odd": odd})
    return page


PAGES = [report, index, statistics]


@pytest.mark.parametrize("write", PAGES)
def test_a_page_has_a_strict_policy_and_keeps_it(tmp_path: Path, write: Any) -> None:
    text = write(tmp_path).read_text(encoding="utf-8")
    page = Text(text)
    [policy] = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    [style] = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "url(" not in style
    assert "@import" not in style
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base")
        assert "style" not in attributes, (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)


@pytest.fixture(scope="module")
def browser() -> Any:
    opened = Browser()
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which is not installed")
@pytest.mark.parametrize("write", PAGES)
def test_a_browser_refuses_nothing_of_a_page_and_draws_it(
    tmp_path: Path, browser: Any, write: Any
) -> None:
    browser.said.clear()
    browser.open(write(tmp_path).as_uri())
    assert browser.run("getComputedStyle(document.querySelector('section')).borderRadius") == "12px"
    assert browser.said == []
    # Forbidden content is refused, so the policy is in effect.
    add = "document.body.append(Object.assign(document.createElement('img'), {src: 'data:,'}))"
    browser.run(f"void {add}")
    browser.wait_for("true")
    assert "Content Security Policy" in "".join(browser.said)


def test_pages_of_statistics_have_the_columns_of_all_splits(tmp_path: Path) -> None:
    text = statistics(tmp_path).read_text(encoding="utf-8")
    for words in ("train", "eval", "odd", ">rating<", "75.0", "4 rows in odd"):
        assert words in text
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_tfdvs_statistics_become_pages_of_ours(tmp_path: Path) -> None:
    text_format = pytest.importorskip("google.protobuf.text_format")
    statistics_pb2 = pytest.importorskip("tensorflow_metadata.proto.v0.statistics_pb2")
    pages = pytest.importorskip("components.validation")
    lists = {}
    for split, n in (("train", 8), ("eval", 4)):
        proto = f"""datasets {{ num_examples: {n} features {{ path {{ step: "rating" }} type: FLOAT
          num_stats {{ common_stats {{ num_non_missing: {n} tot_num_values: {n} }}
            mean: 3.25 std_dev: 1.5 min: 0.5 median: 3.5 max: 5 num_zeros: 2
            histograms {{ type: STANDARD buckets {{ sample_count: 3 }}
                          buckets {{ sample_count: 5 }} }} }} }}
          features {{ path {{ step: "released" }} type: INT
          num_stats {{ common_stats {{ num_non_missing: {n} tot_num_values: {n} }}
            mean: 1e9 std_dev: 9 min: 946684800 median: 1e9 max: 1463616000 }} }} }}"""
        statistics = text_format.Parse(proto, statistics_pb2.DatasetFeatureStatisticsList())
        lists[split] = pages.summarize_split(statistics, ("released",))
    written = pages.write_pages(tmp_path, "interactions", lists, {"train": lists["eval"]})
    files = [entry["file"] for entry in written]
    assert files == [
        "statistics-interactions-train-and-eval.html",
        "statistics-interactions-train-now-and-train-before.html",
    ]
    for file in files:
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert "0.5 … 3.5 … 5" in text
        assert "2000-01-01 … 2001-09-09 01:46 UTC … 2016-05-19" in text
        assert "946684800" not in text
        assert "mean 3.25, standard deviation 1.5" in text
        assert "bar-chart" in text
