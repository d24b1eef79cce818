"""The results of an evaluation and of a comparison, with tables for notebooks."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from recsys import registry
from recsys.errors import UsageError
from recsys.formats import ABSENT, change, change_span, count, counted, html_table, span
from recsys.metrics import metric_name
from recsys.system.files import commit_text, read_result
from recsys.tasks.judging_side import BLESSED, STAGES

_ROUNDING = 1e-8
"""Differences below this are rounding errors, and are shown as 0."""

_SHOWN = ("recall", "ndcg", "mrr")
_BLESSED_TITLE = "last blessed"
_FACTS = (
    "query", "queries", "users", "candidates", "repeats", "repeated_positives",
    "sampled_negatives", "confidence",
)  # fmt: skip


class Shown:
    """A table with a title, shown as text or HTML."""

    file: ClassVar[str]
    """Name of the file that `save` writes."""
    content: dict[str, Any]

    def title(self) -> str:
        """Returns the title: the queries and the candidates."""
        queries = counted(self.content["queries"], "query", "queries")
        if "rows" in self.content:
            queries = counted(self.content["rows"], "row", "rows")
        users = counted(self.content["users"], "user", "users")
        sampled, candidates = map(self.content.get, ("sampled_negatives", "candidates"))
        if candidates is None:
            return f"{queries} of {users}"
        among = f"{count(sampled)} random" if sampled else count(candidates)
        return f"{queries} of {users}, ranks among {among} items"

    def headings(self) -> list[str]:
        """Returns the column headings; the first column is the metric."""
        raise NotImplementedError

    def rows(self) -> list[list[str]]:
        """Returns the cells of the table as text, a row for each metric."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Returns sentences below the table."""
        return []

    def save(self, folder: str | Path) -> Path:
        """Writes the content into a folder as strict JSON, atomically; returns its path."""
        path = Path(folder) / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.content, indent=1, allow_nan=False, ensure_ascii=False)
        commit_text(text + "\n", path)
        return path

    def __repr__(self) -> str:
        """Returns the table as text."""
        table = [self.headings(), *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
            for first, *others in table
        ]
        return "\n".join([self.title(), *lines, *self.notes()])

    def _repr_html_(self) -> str:
        """Returns the table as HTML."""
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        return html_table(self.headings(), self.rows(), self.title(), texts=("metric",)) + notes


class EvaluationResult(Shown):
    """The figures and the decision of an evaluation.

    Args:
        content: The content of `evaluation.json`, see docs/folders.md.
    """

    file = "evaluation.json"

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = dict(content)

    @classmethod
    def load(cls, folder: str | Path) -> EvaluationResult:
        """Reads the result that `save` or an evaluation wrote into `folder`.

        Raises:
            RecsysError: The file is missing or damaged (R221).
        """
        return cls(read_result(Path(folder) / cls.file))

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the model by key, such as `recall@10` or `mrr`."""
        return dict(self.content["metrics"])

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Metrics of the baselines by name and key."""
        return dict(self.content["baselines"])

    @property
    def blessed(self) -> bool:
        """Whether the model reaches all thresholds, so that it may be pushed."""
        return bool(self.content["verdict"]["blessed"])

    @property
    def sentence(self) -> str:
        """The decision as a sentence, with its main figure."""
        return str(self.content["verdict"]["sentence"])

    def headings(self) -> list[str]:
        """Returns the column headings."""
        confidence = f"{100 * self.content['confidence']:.3g} % interval"
        return ["metric", "model", confidence, *self._others()]

    def rows(self) -> list[list[str]]:
        """Returns a row for each of the most important metrics."""
        metrics = self.content["metrics"]
        names = [name for name in metrics if metric_name(name) in _SHOWN]
        if self.content["verdict"].get("metric") not in [*names, None]:
            names = list(self.content["intervals"] or metrics)
        return [
            [
                name,
                four_decimals(metrics[name]),
                plain(span(self.content["intervals"].get(name))),
                *(four_decimals(figures.get(name)) for figures in self._others().values()),
            ]
            for name in names
        ]

    def notes(self) -> list[str]:
        """Returns sentences on systems that were not measured, and the decision."""
        left_out = self.content["baselines_left_out"].items()
        why = [f"{self._title_of(name)} was not measured: {text}" for name, text in left_out]
        pair = self.content.get("pair")
        stages = [] if pair is None else [pair["sentence"], pair["exposure_bias"]]
        return [*why, *stages, self.sentence]

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row for each metric and a column for each system."""
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame({"model": self.content["metrics"], **self._others()})

    def _title_of(self, baseline: str) -> str:
        return baseline_title(baseline, self.content)

    def _others(self) -> dict[str, dict[str, float]]:
        baselines = self.content["baselines"].items()
        others = {one: self.content[one]["metrics"] for one in STAGES if one in self.content}
        others |= {self._title_of(name): figures for name, figures in baselines}
        blessed = self.content["blessed_model"]
        return others if blessed is None else {**others, _BLESSED_TITLE: blessed}


class Comparison(Shown):
    """Compares two models, A and B, on the same queries: differences with intervals.

    Both are resampled with the same users (paired bootstrap), so that the interval doesn't contain
    the variance between easy and hard users.

    Args:
        evaluation: Evaluation of B, with A in place of the last blessed model.
        deciding: Key of the metric that decides.

    Attributes:
        content: `query`, `queries`, `users`, `confidence`; the deciding `metric` and a
            `sentence` on it; `metrics`: by key `a`, `b`, `difference`,
            `difference_interval`, `relative`, `interval`, `better` (`a`, `b` or None) and
            `text`.
    """

    file = "comparison.json"

    def __init__(self, evaluation: Mapping[str, Any], deciding: str) -> None:
        metrics = {
            name: _compared(name, evaluation, difference)
            for name, difference in evaluation["comparisons"][BLESSED].items()
        }
        text = metrics[deciding]["text"] if deciding in metrics else f"{deciding} has no value."
        self.content = {name: evaluation.get(name) for name in _FACTS}
        self.content |= {name: evaluation[name] for name in ("state", "rows") if name in evaluation}
        self.content |= {"metric": deciding, "sentence": text, "metrics": metrics}

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Figures of both models by metric, as in `content`."""
        return dict(self.content["metrics"])

    @property
    def sentence(self) -> str:
        """A sentence on the better model in the deciding metric, with the interval."""
        return str(self.content["sentence"])

    @property
    def better(self) -> str | None:
        """The significantly better model in the deciding metric, `a` or `b`; None: neither."""
        deciding = self.content["metrics"].get(self.content["metric"], {})
        better: str | None = deciding.get("better")
        return better

    def headings(self) -> list[str]:
        """Returns the column headings."""
        interval = f"{100 * self.content['confidence']:.3g} % interval"
        return ["metric", "A", "B", "B over A", interval, "better"]

    def rows(self) -> list[list[str]]:
        """Returns a row for each metric."""
        return [
            [
                name,
                four_decimals(metric["a"]),
                four_decimals(metric["b"]),
                plain(change(metric["relative"])),
                plain(change_span(metric["interval"])),
                {"a": "A", "b": "B", None: "–"}[metric["better"]],
            ]
            for name, metric in self.content["metrics"].items()
        ]

    def notes(self) -> list[str]:
        """Returns the sentence on the deciding metric."""
        return [self.sentence]

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with a row for each metric."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.content["metrics"], orient="index")


def four_decimals(value: float | None) -> str:
    """Returns a metric as `0.1234`; a dash for None."""
    return "–" if value is None else f"{value:.4f}"


def plain(text: str) -> str:
    """Returns a text with plain spaces, so that the output can be searched."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def _compared(
    name: str, evaluation: Mapping[str, Any], difference: Mapping[str, Any]
) -> dict[str, Any]:
    described = metric_description(metric_name(name), evaluation)
    better = _better(difference, is_lower=described["better"] == "lower")
    values = {"a": evaluation[BLESSED][name], "b": evaluation["metrics"][name]}
    text = _comparison_text(name, better, difference, evaluation["confidence"])
    return {**values, **difference, "better": better, "text": text}


def _better(difference: Mapping[str, Any], *, is_lower: bool) -> str | None:
    """Returns which is significantly better; None if the interval contains 0 or is missing."""
    # Uses the interval that is shown.
    low, high = difference["interval"] or difference["difference_interval"] or (0.0, 0.0)
    higher = "b" if low > _ROUNDING else "a" if high < -_ROUNDING else None
    return {"a": "b", "b": "a", None: None}[higher] if is_lower else higher


def _comparison_text(
    name: str, better: str | None, difference: Mapping[str, Any], confidence: float
) -> str:
    interval = difference["difference_interval"]
    if difference["difference"] == 0 and list(interval or [0, 0]) == [0, 0]:
        return f"{name}: A and B are the same."
    if interval is None:
        return f"{name}: too few users to compare A and B."
    size = difference_text(difference, confidence)
    if better is None:
        return f"{name}: neither is significantly better; B differs from A by {size}."
    worse = "A" if better == "b" else "B"
    return f"{name}: {better.upper()} is better than {worse}; B differs from A by {size}."


def difference_text(difference: Mapping[str, Any], confidence: float) -> str:
    """Returns the relative difference as text if it has an interval, else the absolute one.

    Args:
        difference: The fields of a `Difference`.
        confidence: Confidence of its intervals (0.5..1).
    """
    if difference["relative"] is not None and difference["interval"] is not None:
        size, ends = change(difference["relative"]), change_span(difference["interval"])
    else:
        size = _signed(difference["difference"])
        ends = " … ".join(map(_signed, difference["difference_interval"] or ())) or ABSENT
    return plain(f"{size}, {100 * confidence:.3g} % interval {ends}")


def _signed(value: float) -> str:
    text = f"{value:+.4f}"
    if float(text) == 0 and abs(value) > _ROUNDING:
        text = f"{value:+.1g}"  # A difference that is not zero is never shown as zero.
    return text.replace("-", "−")


def baseline_title(name: str, evaluation: Mapping[str, Any] | None = None) -> str:
    """Returns the title of a baseline, from the evaluation or else from its class."""
    described = ((evaluation or {}).get("descriptions") or {}).get("baselines") or {}
    return str(described.get(name) or _of_class("baseline", name, "title") or name)


def metric_description(name: str, evaluation: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns `title`, `meaning` and `better` of a metric, from the evaluation or its class."""
    described = ((evaluation or {}).get("descriptions") or {}).get("metrics") or {}
    if isinstance(described.get(name), dict):
        return dict(described[name])
    title = _of_class("metric", name, "title") or name.replace("_", " ")
    meaning = _of_class("metric", name, "meaning") or ""
    return {"title": title, "meaning": meaning, "better": _of_class("metric", name, "better")}


def _of_class(kind: Literal["metric", "baseline"], name: str, attribute: str) -> Any:
    try:
        return getattr(registry.get(kind, name), attribute)
    except UsageError:
        return None
