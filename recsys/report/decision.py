"""The decision and the headline figures, and the run at a glance."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from recsys.formats import (
    change,
    change_span,
    count,
    counted,
    duration,
    ends_of,
    figure,
    is_number,
    span,
)
from recsys.report.artifacts import Artifacts, MissingError, read_json
from recsys.report.evaluated import Evaluated, metric_title, shown
from recsys.report.runs import read_steps
from recsys.report.sparklines import Estimate, draw_whisker, shared_range

FLOOR = "floor"


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule of the config and its outcome.

    Attributes:
        text: The rule and its figures, a sentence.
        passed: Whether it holds.
        picture: The interval and what it had to reach; empty where there is none.
        estimate: The same as text; empty where there is none.
    """

    text: str
    passed: bool
    picture: Markup
    estimate: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The decision as the report shows it.

    Attributes:
        state: `good`, `bad` or `unknown`.
        headline: The verdict in one line.
        sentence: The figure that it rests on, as the evaluation says it; may be empty.
        detail: What it means for the served model.
        rules: The rules, those that failed first.
        reasons: What the evaluator gave as reasons, where it gave no rules.
        loss: That the model is surely worse than the strongest baseline; empty where it isn't.
    """

    state: str
    headline: str
    sentence: str
    detail: str
    rules: list[Rule]
    reasons: list[str]
    loss: str = ""


def read_verdict(artifacts: Artifacts) -> Verdict:
    """Returns the verdict; where there is none, the headline says so."""
    try:
        verdict = artifacts.evaluated().get("verdict")
    except MissingError as missing:
        return Verdict("unknown", "No verdict", "", str(missing), [], [])
    if not isinstance(verdict, dict) or not isinstance(verdict.get("blessed"), bool):
        return Verdict("unknown", "No verdict", "", "The evaluation came to no verdict.", [], [])
    rules = _rules(verdict.get("rules"))
    listed = verdict.get("reasons")
    reasons = [str(reason) for reason in listed] if isinstance(listed, list) and not rules else []
    sentence = str(verdict.get("sentence") or "")
    state, headline, detail = _outcome(artifacts, is_blessed=verdict["blessed"])
    if state == "bad" and not sentence:
        headline = f"Refused: {(reasons or ['no reason was given'])[0]}"
    return Verdict(state, headline, sentence, detail, rules, reasons, _loss(artifacts))


def _loss(artifacts: Artifacts) -> str:
    """Returns a warning if the strongest baseline is significantly better; else empty."""
    evaluated = Evaluated.of(artifacts)
    strongest = evaluated.strongest_baseline()
    if strongest is None or evaluated.difference(strongest, evaluated.deciding).outcome != "worse":
        return ""
    other = evaluated.name(strongest)
    metric = evaluated.title(evaluated.deciding)
    return f"Surely worse in {metric} than {other}, the strongest baseline"


def _outcome(artifacts: Artifacts, *, is_blessed: bool) -> tuple[str, str, str]:
    """Returns state, headline and detail."""
    pushed = artifacts.pushed
    if not is_blessed:
        if pushed:
            detail = f"Refused, and yet {pushed} was pushed: look into the pipeline."
        else:
            detail = "Nothing was pushed; what was served before is still served."
        return "bad", "Refused", detail
    if not pushed:
        detail = f"This run served nothing new. {artifacts.not_pushed or ''}".rstrip()
        return "good", "Blessed, not pushed", detail
    headline = f"Blessed and pushed as version {PurePath(pushed).name}"
    return "good", headline, f"Served from {pushed}"


def _rules(listed: Any) -> list[Rule]:
    rules = (
        [_rule(rule) for rule in listed if isinstance(rule, dict)]
        if isinstance(listed, list)
        else []
    )
    return sorted(rules, key=lambda rule: rule.passed)


def _rule(rule: dict[str, Any]) -> Rule:
    passed = rule.get("passed") is True
    text = str(rule.get("text") or f"{metric_title(str(rule.get('metric')))}: no words given")
    ends = ends_of(rule.get("interval"))
    is_floor = rule.get("against") == FLOOR
    value = rule.get("value" if is_floor else "relative")
    least = rule.get("least")
    if ends is None or not is_number(value) or not is_number(least):
        return Rule(text, passed, Markup(), "")
    # Of another model it is a ratio that must be reached; the interval is of the difference.
    threshold = least if is_floor else least - 1.0
    estimate = Estimate(value, *ends)
    figures = (
        f"{figure(value)}, {span(ends)}" if is_floor else f"{change(value)}, {change_span(ends)}"
    )
    words = f"{figures}; at least {figure(threshold) if is_floor else change(threshold)} asked for"
    scale = shared_range([estimate], [threshold, 0.0])
    picture = draw_whisker(estimate, scale, words, zero=None if is_floor else 0.0, least=threshold)
    return Rule(text, passed, picture, words)


@dataclasses.dataclass(frozen=True)
class Tile:
    """One headline figure.

    Attributes:
        name: Name of the metric.
        value: The model's figure.
        interval: Its interval; empty where there is none.
        change: How far it lies from the strongest of the others; empty where there is none.
        outcome: `better`, `worse` or `level`; empty where nothing says.
        beside: The other one, and its figure.
        decides: Whether the verdict rests on it.
    """

    name: str
    value: str
    interval: str
    change: str
    outcome: str
    beside: str
    decides: bool


def read_tiles(artifacts: Artifacts) -> list[Tile]:
    """Returns the headline figures, the deciding one first."""
    evaluated = Evaluated.of(artifacts)
    k = evaluated.deciding.partition("@")[2] or "10"
    names = dict.fromkeys([evaluated.deciding, f"recall@{k}", f"ndcg@{k}", "mrr", f"coverage@{k}"])
    return [_tile(evaluated, name) for name in names if name in evaluated.metrics][:4]


def _tile(evaluated: Evaluated, name: str) -> Tile:
    other, ends = evaluated.strongest(), evaluated.interval(name)
    beside, apart, outcome = "nothing to compare with", "", ""
    if name.startswith("coverage@"):
        beside = f"of the catalogue is in someone's first {name.partition('@')[2]}"
    elif other is not None:
        beside = f"against {evaluated.name(other)} {figure(evaluated.figure(other, name))}"
        difference = evaluated.difference(other, name)
        apart = "" if difference.relative is None else change(difference.relative)
        outcome = difference.outcome
    return Tile(
        name=evaluated.title(name),
        value=shown(name, evaluated.metrics[name]),
        interval="" if ends is None else span(ends),
        change=apart,
        outcome=outcome,
        beside=beside,
        decides=name == evaluated.deciding,
    )


@dataclasses.dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        name: What it is about.
        text: The figures.
        links: Text and target of what tells more.
    """

    name: str
    text: str
    links: list[tuple[str, str]]


def read_glance(artifacts: Artifacts) -> list[Line]:
    """Returns the lines; what is missing has none, for its own part says so."""
    readers = (_data, _vocabularies, _training, _run)
    return [line for read in readers for line in _tried(read, artifacts)]


def _tried(read: Callable[[Artifacts], Iterator[Line]], artifacts: Artifacts) -> list[Line]:
    try:
        return list(read(artifacts))
    except (MissingError, LookupError, TypeError, ValueError, AttributeError):
        return []


def _data(artifacts: Artifacts) -> Iterator[Line]:
    summaries = [
        read_json(folder / "summary.json", "The summary")
        for folder in artifacts.dead_letters.values()
    ]
    if not summaries:
        return
    read, rejected = (sum(summary[key] for summary in summaries) for key in ("read", "rejected"))
    text = f"{counted(read, 'row', 'rows')} read, {count(rejected)} rejected"
    links = [("what and why", "#data"), ("statistics", "#validation")]
    yield Line("Data", text, links)


def _vocabularies(artifacts: Artifacts) -> Iterator[Line]:
    if artifacts.vocabularies is None:
        return
    diff = read_json(artifacts.vocabularies / "diff.json", "The diff of the vocabularies")
    changes = [
        f"{count(diff[name]['new'])} new {name}{_gone(diff[name]['evicted'])}"
        for name in ("users", "items")
        if name in diff
    ]
    yield Line("Vocabularies", ", ".join(changes), [("diff", "#vocabularies")])


def _gone(n: Any) -> str:
    return f" ({count(n)} evicted)" if is_number(n) and n > 0 else ""


def _training(artifacts: Artifacts) -> Iterator[Line]:
    training = read_json(artifacts.model / "training.json", "The record of the training")
    steps, devices = training["steps"], training["devices"]
    n_devices = len(devices) if isinstance(devices, list) else devices
    text = f"{counted(steps, 'step', 'steps')} on {counted(n_devices, 'device', 'devices')}"
    yield Line(
        "Training",
        f"{text} in {duration(training['seconds'])}",
        [("curve", "#training"), ("tables", "#tables")],
    )


def _run(artifacts: Artifacts) -> Iterator[Line]:
    if artifacts.record is None:
        return
    started = read_steps(artifacts.record)
    n_cached = sum(step.state == "cached" for step in started.steps)
    text = (
        f"{counted(len(started.steps), 'step', 'steps')} in {duration(started.seconds)},"
        f" {count(n_cached)} of them cached"
    )
    yield Line("Run", text, [("times and reasons", "#steps")])
