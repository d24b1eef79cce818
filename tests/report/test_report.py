"""The report shows the figures of a run, escapes all data, and survives missing files."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_evaluation import BLESSED, MODEL, STRENGTH, TITLES, evaluation, metrics
from report_run import CONFIG, GROWTH, VALIDATION, Run, Text, cells_of, text_of

from benchmarks.stores import save_features
from recsys.data.catalogue import FeatureBags
from recsys.formats import change, change_span, figure, span
from recsys.report.run_report import write_report

SCRIPT = "<script>alert('pwned')</script>"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that was blessed and pushed."""
    finished = Run(tmp_path)
    finished.write(TITLES, evaluation())
    return finished


def section(page: str, name: str) -> str:
    """Returns one section of the page."""
    return page.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def head_of(page: str) -> str:
    return page.partition("<header>")[2].partition("</header>")[0]


def row_of(part: str, name: str) -> list[str]:
    """Returns the cells of the first table row whose heading begins with `name`."""
    return next(row for row in cells_of(part) if row[0].startswith(name))


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


# --- the figures of the evaluation


def test_the_metrics_are_those_of_the_evaluation(run: Run) -> None:
    content, part = evaluation(), section(run.report(), "metrics")
    titles = {"recall@10": "recall@10", "ndcg@10": "NDCG@10", "mrr": "MRR", "map@100": "MAP@100"}
    for metric, title in titles.items():
        own, *others = [metrics(system)[metric] for system in STRENGTH]
        compared = content["comparisons"][BLESSED][metric]
        expected = [
            f"{figure(own)} {span(content['intervals'][metric])}",
            *(figure(other) for other in others),
            f"{change(compared['relative'])} {change_span(compared['interval'])}",
        ]
        assert row_of(part, title)[1:] == list(map(plain, expected))
    described = part.partition("Beyond accuracy")[2]
    assert row_of(described, "Gini")[1] == figure(metrics(MODEL)["gini@10"])
    other = part.partition("The other protocol")[2]
    assert row_of(other, "MRR") == ["MRR", "0.302", "▲ 0.312", "−3.1 %"]
    assert ">decides<" not in other


@pytest.mark.parametrize(
    ("verdict", "pushed", "title", "detail"),
    [
        ({"blessed": True}, "/serving/movies/7", "Blessed and pushed as version 7", "Served from"),
        ({"blessed": True}, None, "Blessed, not pushed", "did not change"),
        ({"blessed": False, "reasons": ["no"]}, None, "Refused: no", "Not pushed"),
        ({"blessed": False}, "/serving/movies/7", "Refused", "Refused, but"),
        ({"blessed": True, "rules": [{"least": "x", "interval": 3}]}, None, "Blessed", "✗ failed"),
        ({"blessed": True, "rules": "x", "warning": "<w>"}, None, "Blessed", "&lt;w&gt;"),
        ({}, None, "No verdict", "The evaluation has no verdict."),
    ],
)
def test_the_decision_is_the_title(
    run: Run, verdict: dict[str, Any], pushed: str | None, title: str, detail: str
) -> None:
    run.evaluate(verdict=verdict)
    page = run.report(pushed=pushed)
    assert f"<title>{title}" in page
    assert detail in head_of(page)


def test_slices_have_their_figures_and_few_users_are_flagged(run: Run) -> None:
    part = section(run.report(), "slices")
    for one in evaluation()["slices"]:
        row = row_of(part, one["name"])
        values = (one["metrics"]["recall@10"], one[BLESSED]["recall@10"])
        assert [row[1], *row[3:5]] == [str(one["users"]), *map(figure, values)]
        assert row[5].startswith(plain(change(one["comparisons"][BLESSED]["relative"])))
        assert ("few users" in row[0]) == (one["users"] < 50)
    assert part.count('<svg class="interval"') == 5


def test_shares_by_popularity_are_those_of_the_evaluation(run: Run) -> None:
    part, exposure = section(run.report(), "exposure"), evaluation()["exposure"]
    names = ("training_share", "recommended_share")
    shares = [[f"{100 * one[name]:.1f} %" for name in names] for one in exposure["bins"]]
    assert [row[2:] for row in cells_of(part)[1:]] == shares
    assert part.count("<polyline") == 2
    assert f"{exposure['never']:,} items" in part


# --- the figures of the run


def test_the_steps_have_their_times_and_reasons(run: Run) -> None:
    with (run.record / "steps.jsonl").open("a") as file:
        file.write('{"step": "Exp')
    page = run.report()
    part = section(page, "steps")
    assert row_of(part, "✓ Trainer")[1] == "1 min 2 s"
    assert "train.epochs 8 → 12" in row_of(part, "✓ Trainer")[3]
    assert row_of(part, "↺ InteractionGen")[3] == "cached: nothing changed"
    assert "3 steps ran, 1 cached" in part
    assert "1 line of the record can't be read." in part
    assert max(float(width) for width in re.findall(r'<rect width="(.*?)%"', part)) == 100.0
    assert '<a href="../index.html">all runs</a>' in page


def test_the_data_are_counted(run: Run) -> None:
    run.write_json(run.validation / "diff.json", {**GROWTH, "kinds": GROWTH["users"]})
    text = text_of(run.report())
    for words in (
        "rows read 100,836 good 100,821 rejected 12 (< 0.1 %) duplicates removed 3",
        "ratings.csv, line 100,017 42,1210,four,964982703",
        "split at 2016-05-19 training events 9,000 held-out events 1,000 (10.0 %)",
        "vocabulary of users 599 vocabulary of items 24 items without training events 2",
        "Every rating counts as a positive",
        "12 new users (3 evicted), 12 new kinds (3 evicted)",
        "new ids 12 kept 599 evicted 3 in recycled rows 2",
        "training events of unknown ids 0.4 % held-out events of unknown ids 2.1 %",
    ):
        assert words in text


def test_drift_skew_and_anomalies_are_shown(run: Run) -> None:
    part = section(run.report(), "validation")
    assert "Unexpected value: share" in part
    assert row_of(part, "rating")[2:] == ["skew", "Jensen-Shannon", "▲ 0.400", "0.30"]
    assert row_of(part, "user_id")[2:] == ["drift", "L-infinity", "0.020", "none"]
    assert "timestamp: it moves with time." in part
    assert row_of(part, "event")[2:4] == ["25.0 %", "2 distinct: view (90.0 %), buy (10.0 %)"]
    assert row_of(part, "timestamp")[3] == "1996-03-29 … 2007-05-06 10:50 UTC … 2018-09-24"
    name = "statistics-interactions-train.html"
    assert f'<a href="{name}">train</a>' in part
    assert (run.root / "report" / name).read_text() == "TFDV"


def test_the_newest_spans_and_every_odd_one_are_shown(run: Run) -> None:
    usual = {"state": "reused", "rows": 1200, "rejected": 0, "new": False, "late": False}
    spans = [{"name": f"2026-01-{day:02}", **usual} for day in range(1, 41)]
    spans[0] |= {"state": "set_aside", "rejected": 400, "reason": SCRIPT}
    spans[-1] |= {"state": "read", "new": True}
    file = run.dead_letters["interactions"] / "spans.json"
    run.write_json(file, spans)
    page = run.report()
    rows = cells_of(page.partition('id="spans"')[2].partition("</table>")[0])[1:]
    assert len(rows) == 32
    assert rows[0] == ["2026-01-40", "new, read", "1,200", ""]
    assert rows[-1] == ["2026-01-01", f"set aside {SCRIPT}", "1,200", "400"]
    assert "<script" not in page
    file.write_text("{")
    assert "Spans This part can't be shown" in text_of(run.report())


def test_the_carried_rows_are_shown_by_table(run: Run) -> None:
    rows = {"rows": 100, "kept": 90, "new": 8, "reset": 2, "neighbours": 6, "dropped": 1}
    run.retrain(warm_start={"base": "/models/7", "warm_starts": 3, "carried": {"items": rows}})
    part = section(run.report(), "training")
    assert row_of(part, "items") == ["items", "90", "90.0 %", "8", "2", "6", "1"]
    run.retrain(warm_start=None, cold="Too new.")
    assert "Too new." in section(run.report(), "training")


def test_the_comparison_that_chose_the_model_is_shown(run: Run) -> None:
    figures = {"sequence": 0.1234, "attention": None}
    of_each = {"epochs": 3, "of_epochs": 12, "seconds": 61.0}
    candidates = [{"name": name, "value": value, **of_each} for name, value in figures.items()]
    choice = {"metric": "recall@10", "minutes": 5, "chosen": "sequence", "candidates": candidates}
    run.retrain(choice=choice)
    part = section(run.report(), "training")
    assert row_of(part, "sequence")[:4] == ["sequence", "0.123", "3", "12"]
    assert row_of(part, "attention")[1] == "–"
    assert "Chosen: sequence." in part


def test_the_features_are_counted(run: Run) -> None:
    bags = np.array([[0, 0], [1, 2], [0, 0], [3, 0]], np.int32)
    save_features([FeatureBags("genres", 5, bags)], run.data / "catalogue")
    plan = FeatureBags("plan", 3, np.array([[0], [0]], np.int32))
    save_features([plan], run.data / "user_features")
    part = section(run.report(), "data")
    assert row_of(part, "genres") == ["genres", "items", "4", "66.7 %", "1.5"]
    assert row_of(part, "plan") == ["plan", "users", "2", "0.0 %", "0.0"]


def test_curves_and_tables_of_the_training_are_shown(run: Run) -> None:
    curve = json.loads((run.model / "training.json").read_text())["curve"]
    run.retrain(curve=[{**point, "temperature": 0.1, "mine": point["step"]} for point in curve])
    part = section(run.report(), "training")
    assert " ".join(row_of(part, "items")[1:]) == "9,743 9,744 64 row 2 1.2 MB 19.5 kB"
    # Loss, validation with a marker at the best step, and the model's own metric.
    assert (part.count("<svg"), part.count("<polyline")) == (3, 3)
    assert part.count('<g class="mark"><path') == 1
    assert "0.130 at step 1,530" in part
    run.retrain(curve=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}])
    part = section(run.report(), "training")
    assert "1 recorded loss is not finite" in part
    assert "nan" not in "".join(re.findall(r"<svg.*?</svg>", part, re.S))


# --- hostile data


def _poison(value: Any) -> Any:
    if isinstance(value, str):
        # The names that the report looks up must stay.
        kept = {*metrics(MODEL), "each_moment", "at_cut", "floor", "positives", "cached", "ran",
                "number", "text"}  # fmt: skip
        return value if value in kept else value + SCRIPT
    if isinstance(value, list):
        return [_poison(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _poison(entry) for key, entry in value.items()}
    return value


def test_all_data_is_escaped_and_nothing_is_loaded(tmp_path: Path) -> None:
    run = Run(tmp_path)
    found = _poison(evaluation())
    # Names that the evaluation gives come from a config too.
    for part in ("baselines", "comparisons"):
        found[part][SCRIPT] = found[part]["ials"]
    found["baselines_left_out"] = {SCRIPT + "x": SCRIPT}
    found["seconds"][SCRIPT] = found["metrics"][SCRIPT] = 0.5
    run.write([title + SCRIPT for title in TITLES], found)
    run.config = _poison(CONFIG)
    run.pushed = "/serving/" + SCRIPT.replace("/", "")
    run.write_json(run.validation / "verdict.json", {"interactions": _poison(VALIDATION)[
        "interactions"]})  # fmt: skip
    run.write_json(run.validation / "diff.json", _poison(GROWTH))
    summaries = [folder / "summary.json" for folder in run.dead_letters.values()]
    for file in (*summaries, run.bundle / "manifest.json", run.model / "training.json"):
        content = _poison(json.loads(file.read_text()))
        for key in {"by_reason", "examples", "read_by_file", "files"} & content.keys():
            if isinstance(content[key], dict):
                content[key] = {name + SCRIPT: entry for name, entry in content[key].items()}
        if "validation" in content:
            content["validation"] = [{SCRIPT: 0.5, "step": 1}]
        run.write_json(file, content)
    steps = (run.record / "steps.jsonl").read_text().splitlines()
    poisoned = [json.dumps(_poison(json.loads(line))) for line in steps]
    (run.record / "steps.jsonl").write_text("\n".join(poisoned) + "\n")
    page = run.report()
    assert "can't be shown" not in page
    assert "<script" not in page
    # Titles, users, slices, rules, rows, tables, steps, versions, config: all of them.
    assert page.count("&lt;script&gt;") > 200
    parsed = Text(page)
    allowed = {"class", "id", "href", "title", "scope", "colspan", "data-label", "name", "lang",
               "content", "charset", "http-equiv", "role", "aria-label", "aria-hidden"}  # fmt: skip
    drawn = {"svg", "g", "path", "line", "rect", "circle", "polyline", "text"}
    for tag, attributes in parsed.tags:
        assert tag not in {"script", "link", "img", "iframe", "object"}
        assert tag in drawn or set(attributes) <= allowed, (tag, attributes)
        assert not re.match(r"\w*:|/", attributes.get("href") or "#")
    ids = {attributes["id"] for _, attributes in parsed.tags if "id" in attributes}
    links = {str(attributes.get("href")) for _, attributes in parsed.tags}
    assert {link[1:] for link in links if link.startswith("#")} <= ids


# --- missing and damaged files


def test_damaged_files_never_stop_the_report(run: Run) -> None:
    files = [path for path in run.root.rglob("*") if path.is_file()]
    for file in files:
        before = file.read_bytes()
        file.write_bytes(b"[1, 2]" if file.suffix == ".json" else b"\x00\xff")
        text_of(run.report())
        file.write_bytes(before)
    for file in files:
        kept = file.read_bytes()
        file.unlink()
        text_of(run.report())
        file.write_bytes(kept)
    for content in (b"", b"[1, 2]"):
        for file in files:
            file.write_bytes(content)
        text_of(run.report())


def test_nothing_at_all_still_gives_a_report(tmp_path: Path) -> None:
    folders = dict.fromkeys(("data", "model", "evaluation"), tmp_path)
    letters = {"interactions": tmp_path / "none"}
    path = write_report(
        tmp_path / "new", config={}, dead_letters=letters, bundle=None, pushed=None, **folders
    )
    text = text_of(path.read_text())
    assert "No verdict" in text
    assert "The run exported no bundle." in text


def test_an_evaluation_without_lists_speaks_of_no_catalogue(run: Run) -> None:
    of_lists = ("query", "candidates", "positives", "sampled_negatives", "at_cut", "exposure")
    figures = {"log_loss": 0.41, "roc_auc": 0.71}
    described = {name: {"title": name, "meaning": "m", "better": "lower"} for name in figures}
    run.evaluate(
        **dict.fromkeys([*of_lists, "examples", "slices", BLESSED]),
        metrics=figures,
        baselines={"constant": {"log_loss": 0.69, "roc_auc": 0.5}},
        comparisons={},
        descriptions={"metrics": described, "baselines": {"constant": "Constant"}},
    )
    page = run.report()
    part = section(page, "metrics")
    assert row_of(part, "log_loss")[1:3] == ["0.410", "0.690"]
    assert not section(page, "exposure")
    assert not section(page, "users")
    assert not re.search("catalogue|protocol|candidates", text_of(part), re.IGNORECASE)


@pytest.fixture(scope="module")
def any_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose evaluation is written again and again."""
    finished = Run(tmp_path_factory.mktemp("any"))
    finished.write(TITLES, evaluation())
    return finished


JUNK = (None, "<b>", -1, [], {}, 1e308, -1e-300, 10**400, True, float("nan"), [[1]], {"a": {}})


@settings(max_examples=25)
@given(st.data())
def test_any_evaluation_gives_a_report(any_run: Run, data: st.DataObject) -> None:
    content = evaluation()
    for _ in range(data.draw(st.integers(1, 4))):
        place: Any = content
        depth = data.draw(st.integers(0, 4))
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(keys))
            if depth == 0 or not isinstance(place[key], dict | list) or not place[key]:
                break
            place, depth = place[key], depth - 1
        place[key] = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
    any_run.write_json(any_run.evaluation / "evaluation.json", content)
    page = any_run.report()
    assert "<b>" not in page
    text_of(page)
