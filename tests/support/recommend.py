"""Asks a loaded bundle; what it writes to stderr is seen by the test."""

import dataclasses
import json
import sys
from pathlib import Path

from recsys.serving.recommendations import load_bundle

folder = Path(sys.argv[1])
loaded = load_bundle(folder / "bundle")
result = {
    "answers": [dataclasses.asdict(a) for a in loaded.recommend(users=["007", "late2"], k=5)],
    "nobody": list(loaded.recommend(users=[], k=5)),
}
(folder / "said.json").write_text(json.dumps(result))
