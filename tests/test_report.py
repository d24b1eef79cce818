"""The report says everything once, escapes all data, and survives what is missing."""

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
from report_evaluation import TITLES, evaluation, metrics
from report_run import CONFIG, GROWTH, VALIDATION, Run, Text, text_of

from recsys.data.catalogue import FeatureBags, save_features
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


def test_the_verdict_comes_first(run: Run) -> None:
    page = run.report()
    text = text_of(page.partition("</head>")[2].partition("<main>")[2].partition("</main>")[0])
    assert text.startswith("Run report · movielens-small")
    assert text.index("Blessed and pushed as version 7") < 100
    sentence = "+1.8 % recall@10 over the last blessed model, 95% interval −3.6 … +7.3 %; blessed"
    assert text.index(sentence) < text.index("✓ passed") < text.index("recall@10 decides")
    assert text.count("✓ passed") == 4
    assert "Significantly worse" not in text
    assert re.search(r"<title>Blessed and pushed as version 7 · movielens-small</title>", page)


def plain(text: str) -> str:
    """Returns text with plain spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_a_rule_that_failed_stands_first_and_says_so(run: Run) -> None:
    rules = evaluation()["verdict"]["rules"]
    rules[2] |= {"passed": False, "text": "the one that failed"}
    verdict = {"blessed": False, "sentence": "not enough; refused", "rules": rules}
    run.evaluate(verdict=verdict)
    text = text_of(run.report(pushed=None))
    assert "Refused not enough; refused Not pushed; the served model" in text
    assert "did not change. ✗ failed the one that failed ✓ passed" in text


def test_a_warning_stands_in_the_head(run: Run) -> None:
    run.evaluate(verdict={**evaluation()["verdict"], "warning": "Worse than popularity: so"})
    head = run.report().partition("<header>")[2].partition("</header>")[0]
    assert '<p class="apart worse">Worse than popularity: so</p>' in head


def test_a_loss_is_shown_as_a_loss_in_words_and_in_colours_of_both_schemes(run: Run) -> None:
    changed = evaluation()
    changed["baselines"]["ials"]["recall@10"] = 0.174
    lost = {"relative": -0.27, "interval": [-0.31, -0.24], "difference": -0.047}
    changed["comparisons"]["ials"]["recall@10"] = lost
    run.evaluate(**changed)
    page = run.report()
    head = page.partition("<header>")[2].partition("</header>")[0]
    said = "Significantly worse in recall@10 than iALS, the strongest baseline"
    assert f'<p class="apart worse">{said}</p>' in head
    assert '<span class="times apart worse">−27.0' in head
    against = plain(page).partition("Comparisons")[2].partition("</table>")[0]
    [row] = [row for row in against.split("<tr>") if 'scope="row">iALS' in row]
    assert '<span class="apart worse">−27.0 %</span>' in row
    assert "significantly worse</small>" in row
    assert '<g class="worse">' in row
    # The last blessed model is level: neither a gain nor a loss.
    [row] = [row for row in against.split("<tr>") if 'scope="row">last blessed' in row]
    assert "significantly" not in row
    assert '<g class="level">' in row
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert ".apart.worse { color: var(--bad); }" in style
    assert style.partition("prefers-color-scheme: dark")[2].partition("}")[0].count("--bad:") == 1


def test_figures_stand_beside_every_baseline(run: Run) -> None:
    page = run.report()
    text = text_of(page)
    # The interval, and the strongest of the others in the deciding metric.
    assert "recall@10 decides 0.127 +1.8 % 0.0964 … 0.1575 against last blessed 0.125" in text
    assert "coverage@10 8.7 % of the catalogue is in the top 10 of some query" in text
    row = "0.127 0.0964 … 0.1575 0.0843 0.0901 0.119 0.115 0.125 +1.8 % −3.6 … +7.3 %"
    assert f"recall@10 decides {row} precision@10 0.0127" in text
    assert "80 users, 5,051 queries, 5,056 held-out events, 9,742 candidates; exact" in text
    assert "12 held-out events are of items unknown to the model" in text
    assert "Differences are from the last blessed model, the strongest in recall@10." in text
    cut_offs = text.partition("Every cut-off")[2]
    assert all(f"NDCG@{k} " in cut_offs for k in (1, 5, 10, 20, 50, 100))


def test_the_other_protocol_stands_beside_and_does_not_decide(run: Run) -> None:
    page = run.report()
    text = text_of(page)
    other = text.partition("The other protocol")[2]
    assert other.startswith(" Protocol at the cut: one query per user")
    assert "MRR 0.302 ▲ 0.312 −3.1 %" in other
    # A tile, a row at the deciding cut-off, and a row among all of them.
    assert page.count(">decides<") == 3
    assert ">decides<" not in page.partition("The other protocol")[2]


def test_a_split_says_what_it_makes_of_the_figures(run: Run) -> None:
    split = {"split": "random", "order": "none", "eval_share": 0.1}
    run.evaluate(query="at_cut", split=split, meaning="They flatter.", at_cut=None)
    manifest = run.data / "store" / "store.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **split, "cut": 0}))
    text = text_of(run.report())
    assert "Protocol once per user: one query per user, from the user's training events" in text
    assert "They flatter." in text.partition("Protocol once")[2].partition("recall@10 decides")[0]
    assert "other protocol" not in text
    # Nothing is dated where there is no time.
    assert "split random" in text
    assert "split at" not in text
    assert "1970" not in text


@pytest.mark.parametrize(("chosen", "said"), [(120, False), (90, True)])
def test_users_whose_queries_are_left_out_are_no_random_choice(
    run: Run, chosen: int, said: bool
) -> None:
    run.evaluate(users_chosen=chosen, users_held_out=120, repeat_only_queries=40)
    text = text_of(section(run.report(), "metrics"))
    assert "80 users" in text
    assert ("a random sample of 120" in text) == said


def test_what_was_not_measured_says_why(run: Run) -> None:
    run.evaluate(baselines_left_out={"ials": "it needs more memory than there is"})
    assert "iALS not evaluated: it needs more memory than there is –" in text_of(run.report())


def test_slices_stand_by_kind_and_those_of_few_users_are_flagged(run: Run) -> None:
    page = run.report()
    text = text_of(section(page, "slices").join(["<div>", "</div>"]))
    kinds = ["User activity", "Item popularity", "Recency", "Genres"]
    assert [text.index(kind) for kind in kinds] == sorted(text.index(kind) for kind in kinds)
    assert "users known to training few users 28 1,204 queries 0.154 0.125 +23.2 %" in text
    assert "users new since the cut 52 2,236 queries 0.119 0.125 −4.3 % −36.6 … +28.0 %" in text
    assert "items of the head 79 3,476 events 0.241" in text
    assert "fewer than 50" in text
    assert "has no interval" not in text
    assert section(page, "slices").count('<svg class="interval"') == 11


def test_sampled_figures_are_marked(run: Run) -> None:
    run.evaluate(sampled_negatives=100, exposure=None)
    text = text_of(run.report())
    assert "Sampled. Ranked against 100 random items per query instead of the whole" in text
    assert "exact, over the whole catalogue" not in text
    assert "The evaluation has no counts of recommendations per item." in text


def test_the_run_is_told_step_by_step(run: Run) -> None:
    page = run.report()
    text = text_of(f"<div>{section(page, 'steps')}</div>")
    assert "8 steps ran, 3 cached, in 1 min 44 s, without this report" in text
    assert "✓ Trainer 1 min 2 s ran : its config changed: train.epochs 8 → 12" in text
    assert "↺ InteractionGen 0.1 s cached : nothing changed" in text
    assert "Within the evaluation model 3.1 s popularity 0.6 s" in text
    bars = [float(width) for width in re.findall(r'<rect width="(.*?)%"', section(page, "steps"))]
    assert max(bars) == 100.0
    assert len(bars) == 5  # The others took less than a hundredth of the longest.
    assert "Run 11 steps in 1 min 44 s, 3 of them cached" in text_of(page)
    assert '<a href="../index.html">all runs</a>' in page


def test_a_damaged_line_of_the_record_is_said(run: Run) -> None:
    with (run.record / "steps.jsonl").open("a") as file:
        file.write('{"step": "Exp')
    text = text_of(run.report())
    assert "1 line of the record can't be read." in text
    assert "8 steps ran, 3 cached" in text


def test_data_is_counted_and_dead_letters_are_shown(run: Run) -> None:
    text = text_of(run.report())
    assert "rows read 100,836 good 100,821 rejected 12 (< 0.1 %) duplicates removed 3" in text
    assert "positives 48,580" in text
    assert "rating is no number 11" in text
    assert "ratings.csv, line 100,017 42,1210,four,964982703" in text
    assert "split at 2016-05-19 training events 9,000 held-out events 1,000 (10.0 %)" in text
    assert "vocabulary of users 599 vocabulary of items 24 items without training events 2" in text


def test_drift_skew_and_anomalies_are_shown(run: Run) -> None:
    page = run.report()
    text = text_of(page)
    assert "90,000 rows in train, 10,000 rows in eval. Drift is the distance from the data" in text
    assert "event, split eval Unexpected value: share" in text
    rating = "rating train Jensen-Shannon 0.012 ▲ 0.400 0.30"
    assert f"drift skew limit {rating} user_id train L-infinity 0.020 – none" in text
    assert "timestamp: it moves with time." in text
    assert "event text 25.0 % 2 distinct: view (90.0 %), buy (10.0 %)" in text
    assert "rating number – 0.5 … 3.5 … 5" in text
    assert "timestamp number – 1996-03-29 … 2007-05-06 10:50 UTC … 2018-09-24" in text


def test_pages_of_statistics_lie_beside_the_report(run: Run) -> None:
    page = run.report()
    name = "statistics-interactions-train-and-eval.html"
    assert f'<a href="{name}">train and eval</a>' in page
    assert (run.root / "report" / name).read_text() == "TFDV"


@pytest.mark.parametrize(
    ("drift", "skew", "said"),
    [
        (False, False, "There are no earlier data to compare with"),
        (True, False, "No earlier model was blessed, so no skew."),
    ],
)
def test_what_there_is_no_comparison_with_is_said(
    run: Run, drift: bool, skew: bool, said: str
) -> None:
    found = {**VALIDATION["interactions"], "earlier": {"drift": drift, "skew": skew}}
    run.write_json(run.validation / "verdict.json", {"interactions": found})
    assert said in text_of(run.report())


def test_remarks_on_the_data_are_shown(run: Run) -> None:
    assert "Every rating counts as a positive" in text_of(run.report())


def test_the_growth_of_a_vocabulary_is_shown(run: Run) -> None:
    run.write_json(run.validation / "diff.json", {**GROWTH, "kinds": GROWTH["users"]})
    text = text_of(run.report())
    assert "12 new users (3 evicted), 12 new kinds (3 evicted)" in text
    assert "Vocabulary of kinds: changes since the previous run" in text
    assert "new ids 12 kept 599 evicted 3 in recycled rows 2" in text
    assert "training events of unknown ids 0.4 % held-out events of unknown ids 2.1 %" in text
    assert "new alice, bob below min count eve" in text


def span(day: int, state: str = "reused", **more: Any) -> dict[str, Any]:
    """Returns a span of `spans.json`."""
    usual = {"name": f"2026-01-{day:02}", "state": state, "rows": 1200, "rejected": 0}
    return {**usual, "new": False, "late": False, "reason": None, **more}


def test_the_newest_spans_are_shown_and_every_odd_one(run: Run) -> None:
    spans = [span(1, "set_aside", rejected=400, reason=SCRIPT), *map(span, range(2, 40))]
    spans.append(span(40, "read", new=True))
    run.write_json(run.dead_letters["interactions"] / "spans.json", spans)
    page = run.report()
    text = text_of(page)
    assert "40 spans; new: 2026-01-40; set aside: 2026-01-01." in text
    rows = page.partition('id="spans"')[2].partition("</table>")[0].split("<tr>")[2:]
    assert len(rows) == 32
    assert text_of(f"<tr>{rows[0]}".partition("</tbody>")[0]) == "2026-01-40 new, read 1,200"
    assert text_of(f"<tr>{rows[1]}") == "2026-01-39 reused 1,200"
    assert '<span class="badge warn">set aside</span>' in rows[-1]
    assert "400" in rows[-1]
    assert "<script" not in page


@pytest.mark.parametrize("content", ["{", "[3]", '{"a": 1}'])
def test_damaged_spans_are_said_in_words(run: Run, content: str) -> None:
    (run.dead_letters["interactions"] / "spans.json").write_text(content)
    assert "Spans This part can't be shown" in text_of(run.report())


def test_what_was_carried_over_is_shown_by_table(run: Run) -> None:
    rows = {"rows": 100, "kept": 90, "new": 8, "reset": 2, "neighbours": 6, "dropped": 1}
    warm_start = {
        "base": "/models/7", "trained_until": 1_769_904_000, "steps_before": 4800,
        "warm_starts": 3, "carried": {SCRIPT: rows},
    }  # fmt: skip
    run.retrain(warm_start=warm_start)
    page = run.report()
    text = text_of(page)
    assert "from model /models/7 trained on events until 2026-02-01" in text
    assert "steps before 4,800 warm starts since the last cold start 3" in text
    assert "</script> 90 90.0 % 8 2 6 1" in text
    assert "<script" not in page
    run.retrain(warm_start=None, cold="Too new.")
    assert "Too new." in section(run.report(), "training")


def test_the_features_are_counted(run: Run) -> None:
    bags = np.array([[0, 0], [1, 2], [0, 0], [3, 0]], np.int32)
    save_features([FeatureBags("genres", 5, bags)], run.data / "catalogue")
    plan = FeatureBags("plan", 3, np.array([[0], [0]], np.int32))
    save_features([plan], run.data / "user_features")
    text = text_of(section(run.report(), "data").join(["<div>", "</div>"]))
    assert "items genres 4 66.7 % 1.5 users plan 2 0.0 % 0.0" in plain(text)
    (run.data / "catalogue" / "genres.npy").write_bytes(b"x")
    assert "The feature genres can't be read" in text_of(run.report())


def test_training_and_tables_are_shown(run: Run) -> None:
    page = run.report()
    text = text_of(page)
    assert (
        "steps 2,040 examples 522,240 time 1 min 2 s examples per second 8,464 devices 2 cpu"
        in text
    )
    assert "items 9,743 9,744 64 row 2 1.2 MB 19.5 kB" in text
    assert "create an array of the size of items." in text
    part = section(page, "training")
    # Loss and validation, each for a desktop and for a phone; the best step has a ring.
    assert (part.count("<svg"), part.count("<polyline"), part.count('class="ring"')) == (4, 4, 2)
    assert "The ring marks the best, 0.129 at step 1,530." in text


def test_auxiliary_losses_and_own_metrics_have_a_curve_each(run: Run) -> None:
    training = json.loads((run.model / "training.json").read_text())
    training["curve"] = [
        {"step": step, "loss": 2.0, "temperature": 0.1, "reconstruction": 9.0 / step, "mine": None}
        for step in (1, 2, 3)
    ]
    run.write_json(run.model / "training.json", training)
    part = section(run.report(), "training")
    assert (part.count("<svg"), part.count("<polyline")) == (6, 6)
    assert "reconstruction in training from 9.00 to 3.00" in text_of(part)


def test_the_old_model_stands_beside_the_new(run: Run) -> None:
    page = run.report()
    text = text_of(page)
    assert "User 1 2 hits of 10 8 of 10 as before History Matrix, The (1999)" in text
    assert "The last blessed model: 2 hits of 10 Kill Bill: Vol. 1 (2003) 0.90" in text
    assert "Goodfellas (1990) new 0.69" in text
    assert "User 599 no hit" in text
    assert "and 2 earlier" in text
    part = section(page, "users")
    assert part.count('class="hit"') == 6
    assert part.count('class="new-mark">new<') == 1 + 3 * 2  # In the text, and two a user.


def test_neighbours_are_the_nearest_by_cosine(run: Run) -> None:
    part = run.report().partition('id="neighbours"')[2].partition("</section>")[0]
    cards = [
        re.findall(r"<h3>(.*?)</h3>|class=\"title\">(.*?)</span>", c)
        for c in part.split("<article")
    ]
    named = [[heading or title for heading, title in card] for card in cards[1:]]
    # The embeddings lie in six groups of four, in the order of the titles, and the
    # titles in the order of their counts.
    assert named[0][0] == "Matrix, The (1999)"
    assert set(named[0][1:4]) == set(TITLES[1:4])
    assert not {card[0] for card in named[1:]} & set(TITLES[:4])
    assert all(len(card) == 6 for card in named)


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


def test_everything_from_data_is_escaped(tmp_path: Path) -> None:
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


def test_a_pushed_but_refused_model_is_called_out(run: Run) -> None:
    run.evaluate(verdict={"blessed": False, "reasons": ["no"]})
    assert "Refused, but" in text_of(run.report())


def test_blessed_without_push_or_bundle(run: Run) -> None:
    text = text_of(run.report(pushed=None, bundle=None))
    assert "Blessed, not pushed" in text
    assert "The run exported no bundle." in text


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("evaluation", "The evaluation is missing: there is no evaluation.json."),
        ("model", "The record of the training is missing"),
        ("model/candidates.npy", "The file of item embeddings is missing"),
        ("model/catalogue", "The catalogue is missing"),
        ("model/vocabulary", "The item vocabulary is missing"),
        ("model/model.json", "keras 3.15.1 tensorflow 2.21.0"),
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


def test_losses_that_are_no_numbers_are_said_and_not_drawn(run: Run) -> None:
    run.retrain(curve=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}])
    page = run.report()
    assert "1 recorded loss is not finite" in text_of(page)
    assert "nan" not in "".join(re.findall(r"<svg.*?</svg>", page, re.S))
    run.retrain(curve=[])
    assert "The training has no loss curve." in text_of(run.report())


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
