"""The figures of the evaluation: the decision, metrics, comparisons, slices and examples.

Each `read_…` returns numbers and names; the templates turn them into text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from markupsafe import Markup

from recsys.formats import (
    change,
    change_span,
    count,
    counted,
    ends_of,
    figure,
    is_number,
    share,
    span,
)
from recsys.report.charts import Size, draw_cloud, picture
from recsys.report.evaluated import (
    MODEL,
    Evaluated,
    RelativeDifference,
    cut_offs,
    metric_title,
    repeats_in_words,
    shown,
    system_name,
)
from recsys.report.run_artifacts import Artifacts, MissingError
from recsys.report.whiskers import Estimate, draw_whisker, shared_range

# --- the decision


def read_verdict(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the decision, its rules with those that failed first, and its effect."""
    verdict = artifacts.evaluated.get("verdict")
    if not isinstance(verdict, dict) or not isinstance(verdict.get("blessed"), bool):
        raise MissingError("The evaluation has no verdict.")
    rules = [_rule(rule) for rule in verdict.get("rules") or [] if isinstance(rule, dict)]
    return {
        "is_blessed": verdict["blessed"],
        "sentence": verdict.get("sentence") or "",
        "warning": verdict.get("warning") or "",
        "rules": sorted(rules, key=lambda rule: rule["passed"]),
        "reasons": verdict.get("reasons") or [],
        "pushed": artifacts.pushed,
        "version": PurePath(artifacts.pushed or "").name,
        "not_pushed": artifacts.not_pushed or "",
        "lost": _lost(Evaluated.of(artifacts)),
    }


def _lost(evaluated: Evaluated) -> dict[str, str] | None:
    """Returns the strongest baseline if it is significantly better; else None."""
    strongest = evaluated.strongest(of_baselines=True)
    if strongest is None or evaluated.difference(strongest, evaluated.deciding).outcome != "worse":
        return None
    return {"metric": evaluated.title(evaluated.deciding), "to": evaluated.name(strongest)}


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    text = rule.get("text") or f"{metric_title(str(rule.get('metric')))}: no description"
    row = {"passed": rule.get("passed") is True, "text": text, "picture": ""}
    is_floor = rule.get("against") == "floor"
    ends, least = ends_of(rule.get("interval")), rule.get("least")
    value = rule.get("value" if is_floor else "relative")
    if ends is None or not is_number(value) or not is_number(least):
        return row
    # Against another model the threshold is a ratio; the interval is of the difference.
    threshold, zero = (least, None) if is_floor else (least - 1.0, 0.0)
    write, write_span = (figure, span) if is_floor else (change, change_span)
    words = f"{write(value)}, {write_span(ends)}; at least {write(threshold)} required"
    estimate = Estimate(value, *ends)
    scale = shared_range([estimate], [threshold, 0.0])
    return row | {"picture": draw_whisker(estimate, scale, words, zero=zero, least=threshold)}


def read_tiles(artifacts: Artifacts) -> list[dict[str, Any]]:
    """Returns the headline figures, the deciding one first."""
    evaluated = Evaluated.of(artifacts)
    k = evaluated.deciding.partition("@")[2] or "10"
    names = dict.fromkeys([evaluated.deciding, f"recall@{k}", f"ndcg@{k}", "mrr", f"coverage@{k}"])
    return [_tile(evaluated, name) for name in names if name in evaluated.metrics][:4]


def _tile(evaluated: Evaluated, name: str) -> dict[str, Any]:
    tile: dict[str, Any] = {
        "name": evaluated.title(name),
        "value": shown(name, evaluated.metrics[name]),
        "interval": evaluated.interval(name),
        "decides": name == evaluated.deciding,
        "difference": RelativeDifference(),
    }
    other = evaluated.strongest()
    if name.startswith("coverage@"):
        return tile | {"coverage_k": name.partition("@")[2]}
    if other is None:
        return tile
    tile |= {"other": evaluated.name(other), "other_figure": evaluated.figure(other, name)}
    return tile | {"difference": evaluated.difference(other, name)}


# --- tables of metrics

_PROTOCOLS = {
    "each_moment": (
        "each moment",
        "every held-out event is predicted from all earlier events of its user",
    ),
    "at_cut": (
        "at the cut",
        "one query per user, from the events before the split; all later events count",
    ),
}
_ONCE = ("once per user", "one query per user, from the user's training events")


def read_metrics(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the metrics under the protocol that the config chose."""
    evaluated = Evaluated.of(artifacts)
    return _measured(evaluated, str(evaluated.part.get("query", "each_moment")), is_chosen=True)


def read_other_protocol(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns the metrics under the protocol that the config did not choose.

    None if the data are not split by time: the two protocols are equivalent then.
    """
    evaluation = artifacts.evaluated
    if _split(evaluation) != "time":
        return None
    chosen = evaluation.get("query", "each_moment")
    other = "at_cut" if chosen == "each_moment" else "each_moment"
    if not evaluation.get(other):
        raise MissingError("The evaluation has only one protocol.")
    shared = {name: evaluation.get(name) for name in ("confidence", "descriptions")}
    evaluated = Evaluated(shared | evaluation[other], artifacts.bless().get("metric"))
    # The verdict rests on the protocol that the config chose.
    return _measured(evaluated, other, is_chosen=False)


def read_beyond(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the metrics of the lists themselves, at the cut-off that decides if they have it."""
    evaluated = Evaluated.of(artifacts)
    names = [name for name in evaluated.metrics if evaluated.is_beyond(name)]
    if not names:
        raise MissingError("The evaluation has no metrics beyond accuracy.")
    order = list((evaluated.part.get("descriptions") or {}).get("metrics") or ())
    at_k = _at_cut_off(names, evaluated.deciding)
    if order:
        at_k.sort(key=lambda name: order.index(name.partition("@")[0]))
    return _table(evaluated, at_k, is_chosen=False)


def _at_cut_off(names: Sequence[str], deciding: str) -> list[str]:
    """Returns the metrics without a cut-off and those at the deciding one, or at the smallest."""
    ks, wanted = cut_offs(names), deciding.partition("@")[2]
    k = wanted if wanted in map(str, ks) else str(min(ks, default=""))
    return [name for name in names if name.partition("@")[2] in ("", k)]


def _measured(evaluated: Evaluated, protocol: str, *, is_chosen: bool) -> dict[str, Any]:
    part = evaluated.part
    names = [name for name in evaluated.metrics if not evaluated.is_beyond(name)]
    at_k = _at_cut_off(names, evaluated.deciding)
    title, meaning = _PROTOCOLS.get(protocol, (protocol, "a protocol of the evaluation"))
    if _split(part) != "time" and protocol == "at_cut":
        title, meaning = _ONCE
    everything = _table(evaluated, names, is_chosen=is_chosen) if len(at_k) < len(names) else None
    return {
        **part,
        "is_chosen": is_chosen,
        "title": title,
        "protocol_meaning": meaning,
        "repeats_text": repeats_in_words(part),
        "table": _table(evaluated, at_k, is_chosen=is_chosen),
        "all_cut_offs": everything,
        "deciding": evaluated.title(evaluated.deciding),
        "n_others": len(evaluated.others),
    }


def _split(evaluation: Mapping[str, Any]) -> str:
    return str((evaluation.get("split") or {}).get("split", "time"))


def _table(evaluated: Evaluated, names: Iterable[str], *, is_chosen: bool) -> dict[str, Any]:
    """Returns the metrics `names` of all systems; with `is_chosen` one of them decides."""
    strongest = evaluated.strongest()
    rows = [_row(evaluated, name, strongest, is_chosen=is_chosen) for name in names]
    return {
        "rows": rows,
        "others": [evaluated.name(other) for other in evaluated.others],
        "strongest": "" if strongest is None else evaluated.name(strongest),
        "strongest_is": "" if strongest is None else evaluated.long_name(strongest),
        "interval_name": evaluated.interval_name(),
        "has_intervals": any(row["interval"] for row in rows),
        "has_better": any(cell["is_better"] for row in rows for cell in row["cells"]),
    }


def _row(
    evaluated: Evaluated, name: str, strongest: str | None, *, is_chosen: bool
) -> dict[str, Any]:
    model, described = evaluated.metrics[name], evaluated.description(name)
    difference = (
        RelativeDifference() if strongest is None else evaluated.difference(strongest, name)
    )
    if evaluated.is_beyond(name):
        difference = difference._replace(outcome="")
    figures = {other: evaluated.figure(other, name) for other in evaluated.others}
    return {
        "name": evaluated.title(name),
        "meaning": described["meaning"],
        "model": shown(name, model),
        "interval": evaluated.interval(name),
        "cells": [
            {
                "name": evaluated.name(other),
                "text": shown(name, value),
                "is_better": _is_better(value, model, described["better"]),
            }
            for other, value in figures.items()
        ],
        "difference": difference,
        "decides": is_chosen and name == evaluated.deciding,
    }


def _is_better(value: object, model: object, better: str | None) -> bool:
    """Returns whether another system's figure beats the model's."""
    if not (is_number(value) and is_number(model)):
        return False
    return (better == "higher" and value > model) or (better == "lower" and value < model)


# --- the deciding metric against each system


def read_against(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the comparison of the model with each other system."""
    evaluated = Evaluated.of(artifacts)
    apart = {other: evaluated.difference(other, evaluated.deciding) for other in evaluated.others}
    scale = shared_range(estimate for d in apart.values() if (estimate := _estimate(d)))
    rows: list[dict[str, Any]] = [
        {
            "name": evaluated.name(other),
            "figure": evaluated.figure(other, evaluated.deciding),
            "difference": difference,
            "picture": _whisker(difference, scale, f"against {evaluated.long_name(other)}"),
        }
        for other, difference in apart.items()
    ]
    left_out = evaluated.part.get("baselines_left_out") or {}
    rows += [{"name": evaluated.name(name), "why_not": why} for name, why in left_out.items()]
    if not rows:
        raise MissingError("There are no other systems to compare the model with.")
    title = evaluated.title(evaluated.deciding)
    return {"metric": title, "interval_name": evaluated.interval_name(), "rows": rows}


def _estimate(difference: RelativeDifference) -> Estimate | None:
    """Returns what can be drawn of a difference; None where it has no interval."""
    if difference.relative is None or difference.interval is None:
        return None
    return Estimate(difference.relative, *difference.interval)


def _whisker(difference: RelativeDifference, scale: Any, against: str) -> Markup:
    estimate = _estimate(difference)
    if estimate is None:
        return Markup()
    outcome = "" if difference.outcome == "level" else f", significantly {difference.outcome}"
    ends = change_span(difference.interval)
    says = f"{against}: {change(difference.relative)}, interval {ends}{outcome}"
    return draw_whisker(estimate, scale, says)


# --- slices

_SMALL_SLICE_USERS = 50


def read_slices(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the deciding metric on each slice, beside the strongest on all queries."""
    evaluated = Evaluated.of(artifacts)
    parts = evaluated.part.get("slices")
    if not parts:
        raise MissingError("The evaluation has no slices.")
    other = evaluated.strongest()
    limit = evaluated.part.get("small_slice") or _SMALL_SLICE_USERS
    rows = [_slice(part, evaluated, other) for part in parts]
    # Small slices, which vary widely, don't stretch the scale of the others.
    known = [(_estimate(row["difference"]), row["is_small"]) for row in rows]
    large = [estimate for estimate, is_small in known if estimate and not is_small]
    scale = shared_range(large or [estimate for estimate, _ in known if estimate])
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if other is not None:
            against = f"{row['name']}, against {evaluated.long_name(other)}"
            row["picture"] = _whisker(row["difference"], scale, against)
        kinds.setdefault(str(row.get("kind") or "other"), []).append(row)
    return {
        "metric": evaluated.title(evaluated.deciding),
        "other": "" if other is None else evaluated.name(other),
        "other_is": "" if other is None else evaluated.long_name(other),
        "interval_name": evaluated.interval_name(),
        "kinds": kinds,
        "has_small": any(row["is_small"] for row in rows),
        "lacks_intervals": any(
            row["difference"].relative is not None and row["difference"].interval is None
            for row in rows
        ),
        "limit": limit,
    }


def _slice(part: Mapping[str, Any], evaluated: Evaluated, other: str | None) -> dict[str, Any]:
    metric = evaluated.deciding
    own = Evaluated({"descriptions": evaluated.part.get("descriptions"), **part}, metric)
    return {
        **part,
        "name": part["name"],
        "model": own.figure(MODEL, metric),
        "other": None if other is None else own.figure(other, metric),
        "difference": RelativeDifference() if other is None else own.difference(other, metric),
        "is_small": part.get("is_small") is True,
    }


# --- popularity and exposure

_CLOUD: tuple[Size, Size] = (990, 340), (330, 300)
_SHARES = {"training_share": "of the training events", "recommended_share": "of the model's lists"}


def read_exposure(artifacts: Artifacts) -> dict[str, Any]:
    """Returns how often items are recommended, by their popularity."""
    exposure = artifacts.evaluated.get("exposure")
    if not exposure:
        raise MissingError("The evaluation has no counts of recommendations per item.")
    points = [(float(x), float(y)) for x, y in exposure.get("points") or []]
    bins = exposure.get("bins") or []
    return {
        "picture": _cloud(points, bins, count(exposure.get("k"))) if points else None,
        "names": list(_SHARES.values()),
        "bins": [{**b, "shares": [(_SHARES[name], b[name]) for name in _SHARES]} for b in bins],
    }


def _cloud(
    points: Sequence[tuple[float, float]], bins: Sequence[Mapping[str, Any]], k: str
) -> dict[str, Any]:
    n_items, slope = sum(part["items"] for part in bins), None
    which = counted(len(points), "item", "items")
    if len(points) < n_items:
        which = f"{count(len(points))} of {count(n_items)} items, the most recommended and a sample"
    caption = (
        f"{which}, each by its training events and by the number of lists of {k} that contain it;"
        " larger dots are several items."
    )
    if len(points) >= n_items:
        never = sum(y == 0 for _, y in points)
        caption += f" {count(never)} ({share(never / len(points))}) are in no list."
        events, lists = (sum(axis) for axis in zip(*points, strict=True))
        slope = lists / events if events > 0 and lists > 0 else None
    if slope:
        caption += " The dashed line: recommended in proportion to training events."
    names = ("training events", "lists")
    draw = functools.partial(draw_cloud, points, names=names, says=caption, slope=slope)
    return picture("", caption, draw, *_CLOUD)


# --- example users

_SHOWN_ITEMS = 10


def read_people(artifacts: Artifacts) -> list[dict[str, Any]]:
    """Returns the example users with their histories, and their recommendations now and before."""
    examples = artifacts.evaluated.get("examples")
    if not examples:
        raise MissingError("The evaluation has no example users.")
    return [_person(example) for example in examples]


def read_unknown_people(artifacts: Artifacts) -> list[str]:
    """Returns the users that the config names and the evaluation could not show."""
    return artifacts.evaluated.get("unknown_report_users") or []


def _person(example: Mapping[str, Any]) -> dict[str, Any]:
    history = example.get("history") or []
    now, before = (example.get(name) for name in ("recommended", "blessed_recommended"))
    return {
        "user_id": example.get("user_id"),
        "history": history[:_SHOWN_ITEMS],
        "n_earlier": len(history) - _SHOWN_ITEMS,
        "now": _recommended(now or [], before),
        "before": None if before is None else _recommended(before, None),
        "n_alike": len(_ids(now or []) & _ids(before or [])),
    }


def _recommended(
    items: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    known = None if others is None else _ids(others)
    rows = [
        {**item, "is_new": known is not None and item.get("id") not in known}
        for item in items[:_SHOWN_ITEMS]
    ]
    return {"rows": rows, "n_hits": sum(bool(item.get("held_out")) for item in rows)}


def _ids(items: Sequence[Mapping[str, Any]]) -> set[Any]:
    return {item.get("id") for item in items[:_SHOWN_ITEMS]}


def read_evaluation_seconds(artifacts: Artifacts) -> list[tuple[str, Any]]:
    """Returns what the evaluation spent on each system [s]."""
    seconds = artifacts.evaluated.get("seconds") or {}
    return [(system_name(name), value) for name, value in seconds.items()]
