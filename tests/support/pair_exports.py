"""Exports pairs, one without its ranker; checks one against another ranker than training's."""

import json
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
from checked_here import CheckedHere

from recsys.bundles.export import Sources, export
from recsys.config import ExportConfig, ExportStage
from recsys.errors import RecsysError
from recsys.pair.serving import PairServing
from recsys.savedmodel.signatures import load_saved_model

K = 8
folder, data, pair = map(Path, sys.argv[1:])
stage = ExportStage(name="shop", export=ExportConfig(k=K))
evaluation = {
    "metrics": {"ndcg@10": 0.5}, "intervals": {}, "confidence": 0.95, "baselines": {},
    "users": 9, "queries": 9, "candidates": 40, "query": "at_cut", "verdict": {"reasons": []},
    "pair": {"second_stage": "left_out"},
}  # fmt: skip
(folder / "evaluation.json").write_text(json.dumps(evaluation))
mock.patch("recsys.bundles.export.ParityProcess", CheckedHere).start()
export(stage, Sources(pair, data), folder / "bundle")
export(stage, Sources(pair, data, evaluation=folder), folder / "alone")
export(stage, Sources(folder / "shared", data), folder / "shared_bundle")
bent = shutil.copytree(pair, folder / "bent") / "ranker" / "rank_probe.npz"
probe = dict(np.load(bent))
probe["score.buy"] = np.roll(probe["score.buy"], 1)  # As of another ranker.
np.savez(bent, **probe)
reference = PairServing(stage, Sources(folder / "bent", data)).reference()
try:
    reference.check(load_saved_model(folder / "bundle"), folder / "bundle", print)
except RecsysError as error:
    (folder / "refused.txt").write_text(str(error))
