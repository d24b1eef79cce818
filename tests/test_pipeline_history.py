"""Why a step ran again, in words."""

import json

import pytest

pytest.importorskip("tfx", reason="the pipeline's history lies in ML Metadata")

from pipelines.run_record import changed_inputs, changed_parameters

PRODUCERS = {"examples": "InteractionGen", "items": "ItemGen"}


def inputs(code="a", config=None, digest="d", **artifacts):
    config = {"train": {"epochs": 12}} if config is None else config
    parameters = {"code": code, "config": json.dumps(config), "files_digest": digest}
    return parameters, artifacts


@pytest.mark.parametrize(
    ("before", "after", "phrases"),
    [
        (inputs(), inputs(), []),
        (inputs(), inputs(code="b"), ["its code changed"]),
        (inputs(), inputs(digest="e"), ["the content of its files changed"]),
        (
            inputs(),
            inputs(config={"train": {"epochs": 13}}),
            ["its config changed: train.epochs 12 → 13"],
        ),
        (
            inputs(config={"files": "a.csv"}),
            inputs(config={"files": "b.csv", "k": [1]}),
            ["its config changed: files a.csv → b.csv, k null → [1]"],
        ),
        (
            inputs(examples=[1]),
            inputs(examples=[2]),
            ["its input `examples` changed (InteractionGen ran again)"],
        ),
        (
            inputs(code="b", examples=[1], items=[3]),
            inputs(examples=[2], items=[4]),
            [
                "its code changed",
                "its inputs `examples`, `items` changed (InteractionGen, ItemGen ran again)",
            ],
        ),
    ],
    ids=["same", "code", "files", "config", "two-settings", "input", "code-and-inputs"],
)
def test_a_change_is_named(before, after, phrases):
    changes = [
        *changed_parameters(before[0], after[0]),
        *changed_inputs(before[1], after[1], PRODUCERS),
    ]
    assert changes == phrases
