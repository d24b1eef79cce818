"""Figures of a pair: the decision on its ranker, the funnel of its lists, and the ranker itself."""

from __future__ import annotations

from typing import Any

from recsys.pair.folder import RANKER
from recsys.report.evaluated import Evaluated
from recsys.report.label_figures import calibration_of
from recsys.report.page import read_part
from recsys.report.run_figures import training_of
from recsys.report.runs import Artifacts, read_json


def read_pair(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns the fields of `pair`, and the ranker's figures; None for a model of one stage."""
    evaluation = artifacts.evaluated
    pair = evaluation.get("pair")
    if pair is None:
        return None
    own = evaluation.get("ranker")
    return {
        **pair,
        "is_left_out": pair["second_stage"] == "left_out",
        "metrics": own and {"evaluated": (of := Evaluated(own)), "names": [*of.metrics]},
        "labels": calibration_of((own or {}).get("labels") or {}),
        "training": read_part(_training, artifacts),
    }


def _training(artifacts: Artifacts) -> dict[str, Any]:
    training = read_json(artifacts.model / RANKER / "training.json", "The ranker's training")
    return training_of(training, artifacts.config.get("ranker") or {})
