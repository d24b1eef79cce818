"""Metrics by ranx, for lists on stdin as JSON: `[[length, [rank, …]], …]`."""

import json
import sys

from ranx import Qrels, Run, evaluate

ks = [1, 5, 20]
names = [
    f"{metric}@{k}" for metric in ("recall", "precision", "hit_rate", "ndcg", "map") for k in ks
]
cases = json.load(sys.stdin)
qrels = Qrels({f"{i:06}": {f"d{r}": 1 for r in ranks} for i, (_, ranks) in enumerate(cases)})
run = Run(
    {f"{i:06}": {f"d{r}": 1.0 / r for r in range(1, n + 1)} for i, (n, _) in enumerate(cases)}
)
found = evaluate(qrels, run, [*names, "mrr"], return_mean=False, make_comparable=True)
sys.stdout.write(json.dumps({name: values.tolist() for name, values in found.items()}))
