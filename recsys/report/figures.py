"""Figures of the evaluation: the decision, metrics, comparisons, slices and examples.

Each `read_…` returns numbers, names and charts; the templates put them into words and tables.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from markupsafe import Markup

from recsys.evaluation.result import EvaluationResult
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
from recsys.report.charts import Chart, Estimate, Scale, Series, draw_interval, key, shared_range
from recsys.report.evaluated import Evaluated, RelativeDifference, cut_offs, metric_title
from recsys.report.page import style_sheet, templates
from recsys.report.runs import Artifacts, MissingError
from recsys.tasks.judging_side import MODEL

# --- the decision


def read_verdict(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the decision, its rules with those that failed first, and its effect."""
    verdict = artifacts.evaluated.get("verdict")
    if not isinstance(verdict, dict) or not isinstance(verdict.get("blessed"), bool):
        raise MissingError("The evaluation has no verdict.")
    evaluated = Evaluated.of(artifacts)
    rules = [_rule(r, evaluated) for r in verdict.get("rules") or [] if isinstance(r, dict)]
    return {
        **verdict,
        "rules": sorted(rules, key=lambda rule: rule["passed"]),
        "version": PurePath(artifacts.pushed or "").name,
    }


def _rule(rule: Mapping[str, Any], evaluated: Evaluated) -> dict[str, Any]:
    metric = str(rule.get("metric"))
    text = rule.get("text") or f"{metric_title(metric)}: no description"
    row = {"passed": rule.get("passed") is True, "text": text, "picture": ""}
    is_floor = rule.get("against") == "floor"
    ends, least = ends_of(rule.get("interval")), rule.get("least")
    value = rule.get("value" if is_floor else "relative")
    if ends is None or not is_number(value) or not is_number(least):
        return row
    # Against another model the threshold is a ratio; the interval is of the difference.
    is_lower = evaluated.is_lower(metric)
    relative = 1.0 - least if is_lower else least - 1.0
    threshold, zero = (least, None) if is_floor else (relative, 0.0)
    write, write_span = (figure, span) if is_floor else (change, change_span)
    bound = "at most" if is_lower else "at least"
    words = f"{write(value)}, {write_span(ends)}; {bound} {write(threshold)} required"
    estimate = Estimate(value, *ends)
    scale = shared_range([estimate], [threshold, 0.0])
    return row | {"picture": draw_interval(estimate, scale, words, zero, threshold, is_lower)}


# --- metrics

_PROTOCOLS = {
    "each_moment": (
        "each moment",
        "every held-out event is predicted from all earlier events of its user",
    ),
    "at_cut": (
        "at the cut",
        "one query per user, from the events before the split; all later events count",
    ),
    "cut": (
        "as of the cut",
        "histories and statistics are those at the cut, as with a nightly run",
    ),
    "live": (
        "live",
        "histories and statistics hold all events before each row, as in a live system",
    ),
}
_OTHER = {"each_moment": "at_cut", "at_cut": "each_moment", "cut": "live", "live": "cut"}
_ONCE = ("once per user", "one query per user, from the user's training events")


def read_metrics(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the metrics under the protocol that the config chose, and the headline figures."""
    evaluated = Evaluated.of(artifacts)
    deciding, metrics = evaluated.deciding, evaluated.metrics
    k = deciding.partition("@")[2] or "10"
    usual = (f"recall@{k}", f"ndcg@{k}", "mrr", f"coverage@{k}", "gauc", "log_loss")
    tiles = dict.fromkeys([deciding, *usual, "calibration_error"])
    beyond = [name for name in metrics if evaluated.is_beyond(name)]
    if order := list((evaluated.part.get("descriptions") or {}).get("metrics") or ()):
        beyond.sort(key=lambda name: order.index(name.partition("@")[0]))
    return {
        **_measured(evaluated, _protocol(evaluated.part)),
        "decides": deciding,
        "tiles": [name for name in tiles if name in metrics][:4],
        "beyond": _at_cut_off(beyond, deciding),
    }


def read_other_protocol(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns the metrics under the protocol that the config did not choose.

    None if the task has no protocols, or the data are not split by time: the two are equivalent
    then.
    """
    evaluation = artifacts.evaluated
    chosen = _protocol(evaluation)
    if chosen is None or _split(evaluation) != "time":
        return None
    other = _OTHER[chosen]
    if not evaluation.get(other):
        raise MissingError("The evaluation has only one protocol.")
    shared = {name: evaluation.get(name) for name in ("confidence", "descriptions")}
    return _measured(Evaluated(shared | evaluation[other], artifacts.bless().get("metric")), other)


def _protocol(evaluation: Mapping[str, Any]) -> str | None:
    """Returns the protocol of the queries, or the state of a ranker's rows."""
    chosen = evaluation.get("query") or evaluation.get("state")
    return None if chosen is None else str(chosen)


def _measured(evaluated: Evaluated, protocol: str | None) -> dict[str, Any]:
    names = [name for name in evaluated.metrics if not evaluated.is_beyond(name)]
    by_default = (protocol or "", "a protocol of the evaluation")
    title, meaning = _PROTOCOLS.get(protocol or "", by_default)
    if _split(evaluated.part) != "time" and protocol == "at_cut":
        title, meaning = _ONCE
    return {
        "evaluated": evaluated,
        "names": _at_cut_off(names, evaluated.deciding),
        "all_names": names,
        "title": title,
        "meaning": meaning,
    }


def _at_cut_off(names: Sequence[str], deciding: str) -> list[str]:
    """Returns the metrics without a cut-off and those at the deciding one, or at the smallest."""
    ks, wanted = cut_offs(names), deciding.partition("@")[2]
    k = wanted if wanted in map(str, ks) else str(min(ks, default=""))
    return [name for name in names if name.partition("@")[2] in ("", k)]


def _split(evaluation: Mapping[str, Any]) -> str:
    return str((evaluation.get("split") or {}).get("split", "time"))


# --- the deciding metric against each system, and on slices

_SMALL_SLICE_USERS = 50


def read_against(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the comparison of the model with each other system."""
    evaluated = Evaluated.of(artifacts)
    if not evaluated.others and not evaluated.part.get("baselines_left_out"):
        raise MissingError("There are no other systems to compare the model with.")
    differences = {o: evaluated.difference(o, evaluated.deciding) for o in evaluated.others}
    scale = shared_range(filter(None, map(_estimate, differences.values())))
    names = map(evaluated.long_name, differences)
    pictures = [
        _picture(difference, scale, f"against {name}", evaluated.is_lower(evaluated.deciding))
        for name, difference in zip(names, differences.values(), strict=True)
    ]
    rows = list(zip(differences.items(), pictures, strict=True))
    return {"evaluated": evaluated, "rows": rows}


def read_slices(artifacts: Artifacts) -> dict[str, Any]:
    """Returns the deciding metric on each slice, beside the strongest on all queries."""
    evaluated = Evaluated.of(artifacts)
    parts = evaluated.part.get("slices")
    if not parts:
        raise MissingError("The evaluation has no slices.")
    metric, other = evaluated.deciding, evaluated.strongest()
    shared = {"descriptions": evaluated.part.get("descriptions")}
    rows = [{**part, "name": part["name"], "evaluated": Evaluated({**shared, **part}, metric)}
            for part in parts]  # fmt: skip
    for row in rows:
        row["difference"] = row["evaluated"].difference(other, metric)
    # Small slices, which vary widely, don't stretch the scale of the others.
    known = [(_estimate(row["difference"]), row.get("is_small")) for row in rows]
    large = [estimate for estimate, is_small in known if estimate and not is_small]
    scale = shared_range(large or [estimate for estimate, _ in known if estimate])
    kinds: dict[str, list[dict[str, Any]]] = {}
    is_lower = evaluated.is_lower(metric)
    for row in rows:
        says = f"{row['name']}, against {evaluated.long_name(other)}"
        kinds.setdefault(str(row.get("kind") or "other"), []).append(
            row | {"picture": _picture(row["difference"], scale, says, is_lower)}
        )
    limit = evaluated.part.get("small_slice") or _SMALL_SLICE_USERS
    return {"evaluated": evaluated, "other": other, "kinds": kinds, "limit": limit}


def _estimate(difference: RelativeDifference) -> Estimate | None:
    """Returns the interval of a difference; None if there is none."""
    if difference.relative is None or difference.interval is None:
        return None
    return Estimate(difference.relative, *difference.interval)


def _picture(difference: RelativeDifference, scale: Scale, against: str, is_lower: bool) -> Markup:
    if (estimate := _estimate(difference)) is None:
        return Markup()
    outcome = "" if difference.outcome == "level" else f", significantly {difference.outcome}"
    ends = change_span(difference.interval)
    says = f"{against}: {change(difference.relative)}, interval {ends}{outcome}"
    return draw_interval(estimate, scale, says, is_lower=is_lower)


# --- the metrics over the length of the list

_DRAWN = ("recall", "ndcg")


def read_over_k(evaluated: Evaluated) -> dict[str, Any] | None:
    """Returns the charts of the metrics over their cut-off, with their legend.

    None for a task whose metrics have no cut-offs.
    """
    ks = cut_offs(evaluated.metrics)
    if not ks and "labels" in evaluated.part:
        return None
    drawn = [
        family
        for family in _DRAWN
        if sum(is_number(evaluated.metrics.get(f"{family}@{k}")) for k in ks) > 1
    ]
    if not drawn:
        raise MissingError("The metrics have a single cut-off, so there is no plot over k.")
    legend = [(evaluated.name(name), key(evaluated.style(name))) for name in evaluated.systems]
    return {"legend": legend, "charts": [_over_k_chart(evaluated, name, ks) for name in drawn]}


def _over_k_chart(evaluated: Evaluated, family: str, ks: Sequence[int]) -> Chart:
    names = [f"{family}@{k}" for k in ks]
    intervals = zip(map(float, ks), map(evaluated.interval, names), strict=True)
    whiskers = [(k, *ends) for k, ends in intervals if ends is not None]
    series, figures = [], []
    for system in evaluated.systems:
        values = [evaluated.figure(system, name) for name in names]
        known = [value if is_number(value) else None for value in values]
        own = whiskers if system == MODEL else []
        points = list(zip(map(float, ks), known, strict=True))
        series.append(Series(evaluated.style(system), points, own))
        figures.append(f"{evaluated.name(system)} {figure(values[-1])}")
    title = f"{evaluated.title(family)}@k"
    caption = f"{title} for k from {ks[0]} to {ks[-1]}. At {ks[-1]}: {', '.join(figures)}."
    if whiskers:
        caption += f" Whiskers: {evaluated.interval_name()} of the model."
    labels = [(float(k), str(k)) for k in ks]
    return Chart(title, caption, series, labels, x_name="k", is_log=True)


class Plot(NamedTuple):
    """Charts as HTML, without scripts and network.

    Attributes:
        html: The charts with their keys and captions.
    """

    html: str

    def _repr_html_(self) -> str:
        """Returns the charts in a frame, so that their style doesn't affect the notebook."""
        page = html.escape(self.page(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="380" frameborder="0"></iframe>'

    def page(self) -> str:
        """Returns a page of the charts."""
        head = f'<!doctype html><meta charset="utf-8"><style>{style_sheet()}</style>'
        return f"{head}<body><main>{self.html}</main></body>"

    def save(self, path: str | Path) -> Path:
        """Writes the page; returns its path."""
        path = Path(path)
        path.write_text(self.page(), encoding="utf-8")
        return path


def plot_metrics(result: EvaluationResult) -> Plot:
    """Plots recall and NDCG over their cut-off, of the model and the systems beside it.

    Args:
        result: An evaluation.

    Returns:
        The charts, which a notebook shows; `save(path)` writes them as a page.

    Raises:
        MissingError: The metrics have a single cut-off, or none.
    """
    drawn = read_over_k(Evaluated(result.content, result.content["verdict"]["metric"]))
    if drawn is None:
        raise MissingError("The metrics have no cut-offs, so there is no plot over k.")
    macros: Any = templates().get_template("macros.jinja").module
    return Plot(str(macros.charts(drawn["charts"], drawn["legend"])))


# --- popularity and exposure

_SHARES = {"recommended_share": (0, "the model's lists"), "training_share": (1, "training events")}


def read_exposure(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns how often items are recommended, by popularity; None for a task without lists."""
    if "exposure" not in artifacts.evaluated:
        return None
    exposure = artifacts.evaluated["exposure"]
    if not exposure:
        raise MissingError("The evaluation has no counts of recommendations per item.")
    bins, never = exposure.get("bins") or [], exposure.get("never")
    caption = (
        f"Share of the training events and of the model's lists of {count(exposure.get('k'))},"
        " for items by their number of training events."
    )
    if is_number(never):
        never_share = share(never / max(1, exposure["items"]))
        caption += f" {counted(never, 'item', 'items')} ({never_share}) in no list."
    series = [
        Series(style, [(float(i), part[name]) for i, part in enumerate(bins)])
        for name, (style, _) in _SHARES.items()
    ]
    labels = [(float(i), count(part["from"])) for i, part in enumerate(bins)]
    chart = Chart("", caption, series, labels, x_name="training events, at least")
    legend = [(name, key(style)) for style, name in _SHARES.values()]
    return {"charts": [chart], "legend": legend, "bins": bins}


# --- example users

_SHOWN_ITEMS = 10


def read_users(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns the example users with their histories, and their recommendations now and before.

    None for a task without lists.
    """
    evaluation = artifacts.evaluated
    if "examples" not in evaluation:
        return None
    examples = evaluation["examples"]
    if not examples:
        raise MissingError("The evaluation has no example users.")
    shown = [_user(example) for example in examples]
    return {"shown": shown, "unknown": evaluation.get("unknown_report_users") or []}


def _user(example: Mapping[str, Any]) -> dict[str, Any]:
    history = example.get("history") or []
    lists = ("recommended", "retrieved", "blessed_recommended")
    now, retrieved, before = (example.get(name) for name in lists)
    now = (now or [])[:_SHOWN_ITEMS]
    known = None if before is None else {item.get("id") for item in before[:_SHOWN_ITEMS]}
    is_new = [known is not None and item.get("id") not in known for item in now]
    return {
        "user_id": example.get("user_id"),
        "history": history[:_SHOWN_ITEMS],
        "n_earlier": len(history) - _SHOWN_ITEMS,
        "now": [{**item, "is_new": new} for item, new in zip(now, is_new, strict=True)],
        "retrieved": None if retrieved is None else retrieved[:_SHOWN_ITEMS],
        "before": None if before is None else before[:_SHOWN_ITEMS],
        "n_alike": len(now) - sum(is_new),
    }
