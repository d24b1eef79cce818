"""The report shows the figures of a run, escapes all data, and survives missing files."""

from __future__ import annotations

import copy
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_evaluation import BLESSED, STRENGTH, TITLES, evaluation, metrics
from report_run import CONFIG, GROWTH, VALIDATION, Run, Text, cells_of, text_of

from recsys.data.catalogue import FeatureBags, save_features
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


def row_of(part: str, name: str) -> list[str]:
    """Returns the cells of the first table row whose heading begins with `name`."""
    return next(row for row in cells_of(part) if row[0].startswith(name))


# --- the figures of the evaluation


@pytest.mark.parametrize("metric", ["recall@10", "ndcg@10", "map@10", "mrr", "auc", "recall@100"])
def test_the_metrics_are_those_of_the_evaluation(run: Run, metric: str) -> None:
    content = evaluation()
    titles = {"ndcg": "NDCG", "map": "MAP", "mrr": "MRR", "auc": "AUC"}
    family, at, k = metric.partition("@")
    systems = [metrics(system) for system in STRENGTH]
    interval = content["intervals"].get(metric)
    compared = content["comparisons"][BLESSED][metric]
    expected = [
        f"{figure(systems[0][metric])} {span(interval)}",
        *(figure(system[metric]) for system in systems[1:]),
        f"{change(compared['relative'])} {change_span(compared['interval'])}",
    ]
    row = row_of(section(run.report(), "metrics"), titles.get(family, family) + at + k)
    assert row[1:] == [text.replace("\N{NO-BREAK SPACE}", " ") for text in expected]


def test_a_lower_figure_of_the_model_is_marked(run: Run) -> None:
    other = section(run.report(), "metrics").partition("The other protocol")[2]
    assert row_of(other, "MRR") == ["MRR", "0.302", "▲ 0.312", "−3.1 %"]
    assert ">decides<" not in other


def test_a_significant_loss_is_shown_in_words_and_colours(run: Run) -> None:
    changed = evaluation()
    changed["baselines"]["ials"]["recall@10"] = 0.174
    lost = {"relative": -0.27, "interval": [-0.31, -0.24], "difference": -0.047}
    changed["comparisons"]["ials"]["recall@10"] = lost
    run.evaluate(**changed)
    page = run.report()
    head = page.partition("<header>")[2].partition("</header>")[0]
    assert "Significantly worse in recall@10 than iALS" in head
    against = page.partition("Comparisons")[2].partition("</table>")[0]
    assert row_of(against, "iALS")[1:3] == ["0.174", "−27.0 % −31.0 … −24.0 % significantly worse"]
    [row] = [row for row in against.split("<tr>") if 'scope="row">iALS' in row]
    assert '<span class="apart worse">' in row
    assert '<g class="worse">' in row
    # The last blessed model is level: neither a gain nor a loss.
    [row] = [row for row in against.split("<tr>") if 'scope="row">last blessed' in row]
    assert "significantly" not in row
    assert '<g class="level">' in row


@pytest.mark.parametrize(
    ("verdict", "pushed", "title", "detail"),
    [
        ({"blessed": True}, "/serving/movies/7", "Blessed and pushed as version 7", "Served from"),
        ({"blessed": True}, None, "Blessed, not pushed", "did not change"),
        ({"blessed": False, "reasons": ["no"]}, None, "Refused: no", "Not pushed"),
        ({"blessed": False}, "/serving/movies/7", "Refused", "Refused, but"),
        ({}, None, "No verdict", "The evaluation has no verdict."),
    ],
)
def test_the_decision_is_the_title(
    run: Run, verdict: dict[str, Any], pushed: str | None, title: str, detail: str
) -> None:
    run.evaluate(verdict=verdict)
    page = run.report(pushed=pushed)
    head = page.partition("<header>")[2].partition("</header>")[0]
    assert f"<title>{title}" in page
    assert detail in head


def test_a_failed_rule_comes_first(run: Run) -> None:
    rules = evaluation()["verdict"]["rules"]
    rules[2] |= {"passed": False, "text": "the failed one"}
    run.evaluate(verdict={"blessed": False, "sentence": "no", "rules": rules, "warning": "<w>"})
    page = run.report()
    text = text_of(page)
    assert text.index("✗ failed the failed one") < text.index("✓ passed")
    head = page.partition("<header>")[2].partition("</header>")[0]
    assert head.count('<svg class="interval"') == 4
    assert "&lt;w&gt;" in head


@pytest.mark.parametrize(("chosen", "said"), [(120, False), (90, True)])
def test_users_whose_queries_are_left_out_are_no_random_choice(
    run: Run, chosen: int, said: bool
) -> None:
    run.evaluate(users_chosen=chosen, users_held_out=120, repeat_only_queries=40)
    assert ("a random sample of 120" in section(run.report(), "metrics")) == said


def test_slices_have_their_figures_and_few_users_are_flagged(run: Run) -> None:
    part = section(run.report(), "slices")
    for one in evaluation()["slices"]:
        row = row_of(part, one["name"])
        assert row[1] == str(one["users"])
        assert row[3] == figure(one["metrics"]["recall@10"])
        assert row[4] == figure(one[BLESSED]["recall@10"])
        relative = change(one["comparisons"][BLESSED]["relative"])
        assert row[5].startswith(relative.replace("\N{NO-BREAK SPACE}", " "))
        assert ("few users" in row[0]) == (one["users"] < 50)
    assert part.count('<svg class="interval"') == 11


def test_shares_by_popularity_are_those_of_the_evaluation(run: Run) -> None:
    part = section(run.report(), "exposure")
    bins = evaluation()["exposure"]["bins"]
    shares = [[f"{100 * one[n]:.1f} %" for n in ("training_share", "recommended_share")]
              for one in bins]  # fmt: skip
    assert [row[2:] for row in cells_of(part)[1:]] == shares
    assert part.count("<polyline") == 2
    points = evaluation()["exposure"]["points"]
    assert f"{sum(lists == 0 for _, lists in points):,} items" in part


def test_the_old_model_is_beside_the_new(run: Run) -> None:
    part = section(run.report(), "users")
    text = text_of(f"<div>{part}</div>")
    assert "User 1 2 hits of 10 8 of 10 as before History Matrix, The (1999)" in text
    assert "Goodfellas (1990) new 0.69" in text
    assert "User 599 no hit" in text
    assert part.count('class="hit"') == 6
    assert part.count('class="new-mark">new<') == 1 + 3 * 2  # In the text, and two per user.


# --- the figures of the run


def test_the_steps_have_their_times_and_reasons(run: Run) -> None:
    with (run.record / "steps.jsonl").open("a") as file:
        file.write('{"step": "Exp')
    page = run.report()
    part = section(page, "steps")
    assert row_of(part, "✓ Trainer")[1] == "1 min 2 s"
    assert "train.epochs 8 → 12" in row_of(part, "✓ Trainer")[3]
    assert row_of(part, "↺ InteractionGen")[3] == "cached: nothing changed"
    assert "8 steps ran, 3 cached" in part
    assert "1 line of the record can't be read." in part
    bars = [float(width) for width in re.findall(r'<rect width="(.*?)%"', part)]
    assert max(bars) == 100.0
    assert '<a href="../index.html">all runs</a>' in page


def test_data_is_counted_and_dead_letters_are_shown(run: Run) -> None:
    text = text_of(run.report())
    assert "rows read 100,836 good 100,821 rejected 12 (< 0.1 %) duplicates removed 3" in text
    assert "ratings.csv, line 100,017 42,1210,four,964982703" in text
    assert "split at 2016-05-19 training events 9,000 held-out events 1,000 (10.0 %)" in text
    assert "vocabulary of users 599 vocabulary of items 24 items without training events 2" in text
    assert "Every rating counts as a positive" in text


def test_drift_skew_and_anomalies_are_shown(run: Run) -> None:
    page = run.report()
    part = section(page, "validation")
    assert "Unexpected value: share" in part
    assert row_of(part, "rating") == [
        "rating",
        "train",
        "skew",
        "Jensen-Shannon",
        "▲ 0.400",
        "0.30",
    ]
    assert row_of(part, "user_id")[2:] == ["drift", "L-infinity", "0.020", "none"]
    assert "timestamp: it moves with time." in part
    assert row_of(part, "event")[1:4] == [
        "text",
        "25.0 %",
        "2 distinct: view (90.0 %), buy (10.0 %)",
    ]
    assert row_of(part, "timestamp")[3] == "1996-03-29 … 2007-05-06 10:50 UTC … 2018-09-24"
    name = "statistics-interactions-train-and-eval.html"
    assert f'<a href="{name}">train and eval</a>' in page
    assert (run.root / "report" / name).read_text() == "TFDV"


def test_the_growth_of_a_vocabulary_is_shown(run: Run) -> None:
    run.write_json(run.validation / "diff.json", {**GROWTH, "kinds": GROWTH["users"]})
    text = text_of(run.report())
    assert "12 new users (3 evicted), 12 new kinds (3 evicted)" in text
    assert "new ids 12 kept 599 evicted 3 in recycled rows 2" in text
    assert "training events of unknown ids 0.4 % held-out events of unknown ids 2.1 %" in text


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


def test_the_features_are_counted(run: Run) -> None:
    bags = np.array([[0, 0], [1, 2], [0, 0], [3, 0]], np.int32)
    save_features([FeatureBags("genres", 5, bags)], run.data / "catalogue")
    plan = FeatureBags("plan", 3, np.array([[0], [0]], np.int32))
    save_features([plan], run.data / "user_features")
    part = section(run.report(), "data")
    assert row_of(part, "genres") == ["genres", "items", "4", "66.7 %", "1.5"]
    assert row_of(part, "plan") == ["plan", "users", "2", "0.0 %", "0.0"]
    (run.data / "catalogue" / "genres.npy").write_bytes(b"x")
    assert "The feature genres can't be read" in text_of(run.report())


def test_curves_and_tables_of_the_training_are_shown(run: Run) -> None:
    training = json.loads((run.model / "training.json").read_text())
    run.retrain(
        curve=[{**p, "temperature": 0.1, "mine": 9.0 / p["step"]} for p in training["curve"]]
    )
    part = section(run.report(), "training")
    assert row_of(part, "items") == [
        "items",
        "9,743",
        "9,744",
        "64",
        "row",
        "2",
        "1.2 MB",
        "19.5 kB",
    ]
    # Loss, validation with a marker at the best step, and the model's own metric.
    assert (part.count("<svg"), part.count("<polyline")) == (3, 3)
    assert part.count('<g class="mark"><path') == 1
    assert "0.129 at step 1,530" in part
    run.retrain(curve=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}])
    part = section(run.report(), "training")
    assert "1 recorded loss is not finite" in part
    assert "nan" not in "".join(re.findall(r"<svg.*?</svg>", part, re.S))


def test_neighbours_are_the_nearest_by_cosine(run: Run) -> None:
    part = section(run.report(), "neighbours")
    cards = [
        re.findall(r"<h3>(.*?)</h3>|class=\"title\">(.*?)</span>", card)
        for card in part.split("<article")
    ]
    named = [[heading or title for heading, title in card] for card in cards[1:]]
    # The embeddings are in six groups of four, in the order of the titles, and the
    # titles in the order of their counts.
    assert named[0][0] == "Matrix, The (1999)"
    assert set(named[0][1:4]) == set(TITLES[1:4])
    assert not {card[0] for card in named[1:]} & set(TITLES[:4])
    assert all(len(card) == 6 for card in named)


# --- hostile data and missing files


def test_the_page_needs_nothing_from_outside(run: Run) -> None:
    page = run.report()
    parsed = Text(page)
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe", "object"}
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("href", "src", "xlink:href"):
            inner = r"#.*|statistics-[a-z-]+\.html|\.\./index\.html"
            assert re.fullmatch(inner, attributes.get(name) or "#")
    assert "url(" not in page
    assert "@import" not in page
    ids = {attributes["id"] for _, attributes in parsed.tags if "id" in attributes}
    links = {str(attributes["href"]) for tag, attributes in parsed.tags if tag == "a"}
    assert {link[1:] for link in links if link.startswith("#")} <= ids


def test_all_data_is_escaped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    found = _poison(evaluation())
    # Names that the evaluation gives come from a config too.
    found["baselines"][SCRIPT] = found["baselines"]["ials"]
    found["comparisons"][SCRIPT] = found["comparisons"]["ials"]
    found["baselines_left_out"] = {SCRIPT + "x": SCRIPT}
    found["seconds"][SCRIPT] = 1.0
    found["metrics"][SCRIPT] = 0.5
    titles = [title + SCRIPT for title in TITLES]
    run.write(titles, found)
    run.config = _poison(CONFIG)
    run.pushed = "/serving/" + SCRIPT.replace("/", "")
    for folder in run.dead_letters.values():
        summary = _poison(json.loads((folder / "summary.json").read_text()))
        for key in ("by_reason", "examples", "read_by_file"):
            summary[key] = {name + SCRIPT: entry for name, entry in summary[key].items()}
        run.write_json(folder / "summary.json", summary)
    verdict = {"interactions": _poison(VALIDATION["interactions"])}
    verdict["interactions"]["splits"]["train"]["columns"][1]["kind"] = "number"
    run.write_json(run.validation / "verdict.json", verdict)
    run.write_json(run.validation / "diff.json", _poison(GROWTH))
    training = _poison(json.loads((run.model / "training.json").read_text()))
    training["validation"] = [{SCRIPT: 0.5, "step": 1}]
    run.write_json(run.model / "training.json", training)
    manifest = _poison(json.loads((run.bundle / "manifest.json").read_text()))
    manifest["files"] = {name + SCRIPT: entry for name, entry in manifest["files"].items()}
    run.write_json(run.bundle / "manifest.json", manifest)
    steps = (run.record / "steps.jsonl").read_text().splitlines()
    poisoned = [json.dumps(_poison(json.loads(line))) for line in steps]
    (run.record / "steps.jsonl").write_text("\n".join(poisoned) + "\n")
    page = run.report()
    assert "can't be shown" not in page
    assert "<script" not in page
    assert html.escape(SCRIPT, quote=False).replace("'", "&#39;") in page
    parsed = Text(page)
    assert "script" not in {tag for tag, _ in parsed.tags}
    allowed = {"class", "id", "href", "title", "scope", "colspan", "data-label", "name", "lang",
               "content", "charset", "http-equiv", "role", "aria-label", "aria-hidden"}  # fmt: skip
    drawn = {"svg", "g", "path", "line", "rect", "circle", "polygon", "polyline", "text"}
    for tag, attributes in parsed.tags:
        assert tag in drawn or set(attributes) <= allowed, (tag, attributes)
    # Titles, users, slices, rules, rows, tables, steps, versions, config: all of them.
    assert page.count("&lt;script&gt;") > 300


def _poison(value: Any) -> Any:
    if isinstance(value, str):
        # The names that the report looks up must stay.
        kept = {*metrics("model"), "each_moment", "at_cut", "floor", "positives", "cached", "ran"}
        return value if value in kept else value + SCRIPT
    if isinstance(value, list):
        return [_poison(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _poison(entry) for key, entry in value.items()}
    return value


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("evaluation", "The evaluation is missing: there is no evaluation.json."),
        ("model", "The record of the training is missing"),
        ("model/candidates.npy", "The file of item embeddings is missing"),
        ("model/catalogue", "The catalogue is missing"),
        ("model/vocabulary", "The item vocabulary is missing"),
        ("model/model.json", "The model is missing"),
        ("data", "The interaction store is missing"),
        ("data/vocabulary", "vocabulary of users missing"),
        ("bundle", "The bundle's manifest is missing"),
        ("dead/items", "The summary of the items is missing"),
        ("validation/verdict.json", "The validation of the data is missing"),
        ("validation/diff.json", "The diff of the vocabularies is missing"),
        ("runs", "The run has no record of its steps."),
    ],
)
def test_what_is_missing_is_said_in_words(run: Run, gone: str, said: str) -> None:
    path = run.root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert said in text_of(run.report())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slices": None}, "The evaluation has no slices."),
        ({"slices": 7}, "This part can't be shown"),
        ({"at_cut": None}, "The evaluation has only one protocol."),
        ({"examples": []}, "The evaluation has no example users."),
        ({"examples": [{"user_id": "9", "history": [], "recommended": []}]}, "has no history"),
        ({"unknown_report_users": ["x", "y"]}, "but not in the data: x, y."),
        (
            {"slices": [{"users": 3, "metrics": {"recall@10": 1}}]},
            "This part can't be shown (KeyError: 'name').",
        ),
        (
            {
                "slices": [
                    {
                        "name": "tail",
                        "kind": "genres",
                        "users": 75,
                        "queries": 90,
                        "metrics": {"recall@10": 0.5},
                        "blessed_model": {"recall@10": 0.25},
                    }
                ]
            },
            "A difference has no interval if fewer than 10 users are in the slice, or if the last"
            " blessed model finds nothing in some resample",
        ),
        ({"exposure": None}, "The evaluation has no counts of"),
        ({"exposure": {"k": 10, "points": []}}, "The evaluation has no items to plot."),
        ({"verdict": {"blessed": True, "rules": [{"least": "x", "interval": 3}]}}, "✗ failed"),
        ({"verdict": {"blessed": True, "rules": "x", "reasons": ["y"]}}, "Blessed and pushed"),
        ({"metrics": {"mrr": 0.5}}, "The metrics have a single cut-off"),
        ({"metrics": {"mrr": 0.5}}, "The evaluation has no metrics beyond accuracy."),
        ({"metrics": None}, "The evaluation has no metrics."),
        ({"metrics": ["recall@10"]}, "The evaluation has no metrics."),
        ({"baselines": None}, "against last blessed 0.125"),
        ({"baselines": None, "blessed_model": None}, "No baseline was evaluated."),
        (
            {"baselines": None, "blessed_model": None},
            "There are no other systems to compare the model with",
        ),
        ({"blessed_model": None}, "There is no earlier blessed model to compare with."),
        ({"verdict": None}, "The evaluation has no verdict."),
        ({"metrics": {"recall@10": float("nan")}}, "recall@10 decides – "),
    ],
)
def test_an_evaluation_with_holes_is_said_in_words(
    run: Run, changed: dict[str, Any], said: str
) -> None:
    run.evaluate(**changed)
    assert said in text_of(run.report())


FILES = [
    "evaluation/evaluation.json",
    "model/training.json",
    "model/candidates.npy",
    "model/model.json",
    "model/vocabulary/items.parquet",
    "model/catalogue/titles.parquet",
    "data/store/store.json",
    "data/vocabulary/items.parquet",
    "bundle/manifest.json",
    "dead/items/summary.json",
    "validation/verdict.json",
    "validation/diff.json",
    "runs/2026-02-03T01-00-00.000000Z/steps.jsonl",
]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_never_stops_the_report(run: Run, name: str) -> None:
    (run.root / name).write_bytes(b"\x00\xff garbage")
    text_of(run.report())


@pytest.mark.parametrize("content", [b"", b"[1, 2]"], ids=["empty", "list"])
def test_not_even_all_of_them_together_do(run: Run, content: bytes) -> None:
    for name in FILES:
        (run.root / name).write_bytes(content)
    text_of(run.report())


def test_nothing_at_all_still_gives_a_report(tmp_path: Path) -> None:
    path = write_report(
        tmp_path / "new" / "folder",
        config={},
        dead_letters={"interactions": tmp_path / "none"},
        data=tmp_path,
        model=tmp_path,
        evaluation=tmp_path,
        bundle=None,
        pushed=None,
    )
    text = text_of(path.read_text())
    assert "No verdict" in text
    assert "The run has no validation of its data." in text


@pytest.fixture(scope="module")
def any_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose evaluation is written again and again."""
    finished = Run(tmp_path_factory.mktemp("any"))
    finished.write(TITLES, evaluation())
    return finished


JUNK = (None, "<b>", -1, [], {}, 1e308, -1e-300, 10**400, True, float("nan"), [[1]], {"a": {}})


@settings(max_examples=25)
@given(st.data())
def test_whatever_the_evaluation_holds_there_is_a_report(any_run: Run, data: st.DataObject) -> None:
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
