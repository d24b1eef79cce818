"""Labels, impressions and features of events in a row, from the config to the merged table."""

import pydantic
import pytest

import recsys.data.event_features  # noqa: F401 - registers the kinds
from recsys.config import InteractionsConfig

LABELS = {
    "click": {"column": "event", "values": ["click", "buy"]},
    "buy": {"column": "event", "values": ["buy"], "given": "click"},
    "watched": {"column": "seconds", "given": "buy"},
}
COLUMNS = {"user": "u", "item": "i", "timestamp": "t"}


def config_of(columns=COLUMNS, files="f.csv", **more):
    raw = {"files": str(files), "columns": dict(columns), **more}
    return InteractionsConfig.model_validate(raw, strict=False)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"labels": LABELS}, "positive must name the label that retrieval learns"),
        ({"labels": LABELS, "positive": "like"}, "must be a label .buy, click, watched."),
        ({"labels": {"a": {"column": "x", "at_least": 1, "values": ["1"]}}}, "not both"),
        ({"labels": {"a": {"column": "x", "at_least": 1, "given": "b"}}}, "another label .a."),
        (
            {
                "labels": {"a": {"column": "x"}, "b": {"column": "y", "given": "a"}},
                "positive": "a",
            },
            "'a' is an amount",
        ),
        (
            {
                "labels": {
                    "a": {"column": "x", "at_least": 1, "given": "b"},
                    "b": {"column": "y", "at_least": 1, "given": "a"},
                },
                "positive": "a",
            },
            "back to itself.*a, b",
        ),
        (
            {
                "labels": LABELS,
                "positive": "buy",
                "positive_events": ["buy"],
                "columns": {**COLUMNS, "event": "event"},
            },
            "exclude each other",
        ),
        ({"label_after": "1d"}, "label_after needs labels"),
        ({"columns": {**COLUMNS, "impression": "x"}}, "columns.impression needs labels"),
        ({"labels": LABELS, "positive": "buy", "history_events": ["view"]}, "columns.event"),
        (
            {
                "labels": LABELS,
                "positive": "buy",
                "features": [{"name": "kind", "column": "event", "kind": "category"}],
            },
            "column of label 'buy'.*outcome: true",
        ),
        (
            {
                "columns": {"user": "u", "item": "i"},
                "features": [{"name": "gap", "kind": "gap"}],
            },
            "needs columns.timestamp",
        ),
        (
            {
                "columns": {**COLUMNS, "item": "list.item"},
                "explode": {
                    "column": "list",
                    "separator": " ",
                    "fields": {"separator": "-", "names": ["id", "clicked"]},
                },
            },
            "list.id, list.clicked; received 'list.item'",
        ),
        (
            {"columns": {**COLUMNS, "item": "x"}, "explode": {"column": "x", "parallel": ["y"]}},
            "'y' isn't read",
        ),
    ],
)
def test_a_config_that_contradicts_itself_says_how_to_mend_it(more, sentence):
    with pytest.raises(pydantic.ValidationError, match=sentence):
        config_of(**more)
