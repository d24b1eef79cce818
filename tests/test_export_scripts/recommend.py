"""Asks the Recommender; what it writes to stderr is seen by the test."""

import dataclasses
import json
import sys
from pathlib import Path

from recsys.errors import RecsysError
from recsys.serving.recommender import Recommender

folder = Path(sys.argv[1])
recommender = Recommender(folder / "bundle")
result = {
    "answers": [dataclasses.asdict(a) for a in recommender.recommend(["007", "late2"], 5)],
    "nobody": recommender.recommend([], 5),
    "history": dataclasses.asdict(recommender.recommend(["late0"], 1)[0])["history"],
    "max_k": recommender.max_k,
}
result["stranger"] = dataclasses.asdict(recommender.recommend(["007", "nobody"], 5)[1])
questions = {"unknown": (["007", "\udc80"], 5), "many": (["007"], 13), "none": (["007"], 0)}
for name, (users, k) in questions.items():
    try:
        recommender.recommend(users, k)
    except RecsysError as error:
        result[name] = [error.exit_code, str(error)]
(folder / "said.json").write_text(json.dumps(result))
