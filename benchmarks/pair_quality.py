"""`python -m benchmarks.pair_quality`: NDCG@10 of a pair, and of its retriever alone.

Without `--config` the data are the clicks of `recsys synth --impressions`, with device and hour;
what was shown and not clicked is left out, as in most logs. A line for each of `retriever`, `pair`,
the `difference` of the two, and the ends of its 95 % interval, by a paired bootstrap over users.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as compute
from pyarrow import csv
from typer import Option

from benchmarks.measure import call, print_line, run

_NO_SETS = list[str]()
_LEFT_OUT = ("task:", "impression:", "position:", "buy:", "positive:")
_PAIR = """\
repeats: include
ranker: {model: {type: dcn_v2}, labels: {click: 1.0}, candidates: 200}
evaluate: {k: [10], query: each_moment}
"""


def main(
    config: Annotated[Path | None, Option(help="Config of a pair, in place of the world.")] = None,
    users: int = 2000,
    items: int = 600,
    impressions: int = 30_000,
    set: Annotated[list[str], Option(help="Override of the config, key=value.")] = _NO_SETS,
) -> None:
    """Trains and judges a pair."""
    from recsys.synth import synthesize_impressions

    with tempfile.TemporaryDirectory() as name:
        if config is None:
            world = synthesize_impressions(Path(name, "world"), users, items, impressions)
            rows = csv.read_csv(world.impressions)
            csv.write_csv(rows.filter(compute.equal(rows["clicked"], 1)), world.impressions)
            config = world.config
            lines = config.read_text().splitlines()
            kept = [line for line in lines if not line.strip().startswith(_LEFT_OUT)]
            config.write_text("\n".join([*kept, _PAIR]))
        arguments = {"config": str(config.absolute()), "work": name, "sets": set}
        found = call(train_and_judge, {"KERAS_BACKEND": "jax"}, **arguments).result
        for key, value in found.items():
            print_line("pair_quality", f"{config.stem}, ndcg@10, {key}", [value], "")


def train_and_judge(config: str, work: str, sets: list[str]) -> dict[str, float]:
    """Returns the figures, in a process of its own."""
    import recsys
    from recsys.config import EvaluateStage, PairStage, stage_of
    from recsys.training.pair import train_pair

    whole = recsys.load_config(config, [*sets, "evaluate.baselines=[popularity]"])
    out = Path(work, "pair")
    data = recsys.ingest(whole, Path(work, "data"), progress=False)
    train_pair(stage_of(whole, PairStage), data.folder, out)
    stage = stage_of(whole, EvaluateStage)
    judged: dict[str, Any] = recsys.evaluate(out, data, config=stage, progress=False).content
    pair = judged["pair"]
    low, high = pair["difference_interval"]
    own = judged["metrics"]["ndcg@10"]
    figures = {"retriever": own - pair["difference"], "pair": own, "users": judged["users"]}
    return {**figures, "difference": pair["difference"], "low": low, "high": high}


if __name__ == "__main__":
    run(main)
