"""Asks a loaded bundle; what it writes to stderr is seen by the test."""

import dataclasses
import json
import sys
from pathlib import Path

from recsys.errors import RecsysError
from recsys.serving.recommendations import load_bundle

folder = Path(sys.argv[1])
loaded = load_bundle(folder / "bundle")
result = {
    "answers": [dataclasses.asdict(a) for a in loaded.recommend(users=["007", "late2"], k=5)],
    "nobody": list(loaded.recommend(users=[], k=5)),
    "history": dataclasses.asdict(loaded.recommend("late0", k=1))["history"],
    "max_k": loaded.max_k,
}
result["stranger"] = dataclasses.asdict(loaded.recommend(users=["007", "nobody"], k=5)[1])
questions = {"unknown": (["007", "\udc80"], 5), "many": (["007"], 13), "none": (["007"], 0)}
for name, (users, k) in questions.items():
    try:
        loaded.recommend(users=users, k=k)
    except RecsysError as error:
        result[name] = [error.exit_code, str(error)]
(folder / "said.json").write_text(json.dumps(result))
