"""Exports pairs: two, one whose ranker is another than training's, one that is left out."""

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

K = 8
folder = Path(sys.argv[1])
stage = ExportStage(name="shop", export=ExportConfig(k=K))
evaluation = {
    "metrics": {"ndcg@10": 0.5}, "intervals": {}, "confidence": 0.95, "baselines": {},
    "users": 9, "queries": 9, "candidates": 40, "query": "at_cut", "verdict": {"reasons": []},
    "pair": {"second_stage": "left_out"},
}  # fmt: skip
mock.patch("recsys.bundles.export.ParityProcess", CheckedHere).start()


def made(out, model="pair", evaluation=None):
    export(stage, Sources(folder / model, folder / "data", evaluation=evaluation), folder / out)


made("bundle")
made("own_bundle", "own")
made("shared_bundle", "shared")
(folder / "evaluation.json").write_text(json.dumps(evaluation))
made("alone", evaluation=folder)
bent = shutil.copytree(folder / "pair", folder / "bent") / "ranker" / "rank_probe.npz"
probe = dict(np.load(bent))
probe["score.buy"] = np.roll(probe["score.buy"], 1)  # As of another ranker.
np.savez(bent, **probe)
try:
    made("refused", "bent")
except RecsysError as error:
    (folder / "refused.txt").write_text(str(error))
