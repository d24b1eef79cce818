"""`python -m benchmarks.defaults`: the default model beside simple baselines on many small data.

`--data ROOT` has folders of public splits as in `benchmarks.quality`; those that are missing are
left out. A sample has some users of a set, maybe only their newest events, and maybe no order or no
features. The last event of each user is held out, or a fifth of the events if they have no order.
The config names no model; one seed, on the training events of the splits' validation parts. With
`--minutes` it lets a comparison choose, see docs/defaults.md.

A line per sample has recall@10 and ndcg@10 of the default and of each baseline, and by how much the
default's recall@10 exceeds the best baseline's, with an interval over users. The last line names
the samples on which the default is significantly behind.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typer import Option

from benchmarks.measure import ROOT, call, log, run, words_of
from benchmarks.public_splits import Bags, Csr, read_split, write_data_folder
from recsys.config import Order, TrainStage
from recsys.data.split import SplitRule
from recsys.models.config import AutoConfig

BASELINES = (
    "popularity",
    "item_knn",
    "transitions",
    "ials",
    {"type": "ease", "most_items": 20_000},
)
_METRICS = ("recall@10", "ndcg@10")
_NO_NAMES: list[str] = []
_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class Sample:
    """A part of a set: `users` of its users with their `newest` events (None: all)."""

    of: str
    users: int | None = None
    newest: int | None = None
    order: bool = True
    features: bool = True

    @property
    def name(self) -> str:
        """The sample in words."""
        size = f"{self.users or 'all'} users"
        newest = f", {self.newest} newest events" if self.newest else ""
        order = "" if self.order else ", no order"
        return f"{self.of}, {size}{newest}{order}{'' if self.features else ', no features'}"


_BEAUTY, _FILMS, _GOWALLA, _ML1M = "s3rec_beauty", "films", "gowalla_m1", "ncf_ml1m"
SAMPLES = (
    *(Sample(_BEAUTY, n, features=f) for n in (1000, 3000, 8000) for f in (True, False)),
    *(Sample(_BEAUTY, n, order=False, features=f) for n in (3000, 8000) for f in (True, False)),
    *(Sample(_FILMS, None, n, order=o) for n in (None, 20, 50) for o in (True, False)),
    *(Sample(_FILMS, None, None, order=o, features=False) for o in (True, False)),
    *(Sample(_GOWALLA, n, m, order=False) for n in (1500, 5000) for m in (None, 10)),
    *(Sample(_ML1M, n, m, order=False) for n in (700, 2000) for m in (None, 20)),
)


def main(
    data: Annotated[Path, Option(help="Folder with the folders of public splits.")],
    only: Annotated[list[str], Option(help="Words in the names of samples to run.")] = _NO_NAMES,
    minutes: Annotated[float | None, Option(help="Time to compare models.")] = None,
) -> None:
    """Runs every sample and prints a line for each."""
    behind = []
    for sample in SAMPLES:
        there = sample.of == _FILMS or (data / sample.of / "protocol.json").is_file()
        if not there or (only and not any(word in sample.name for word in only)):
            continue
        log(sample.name)
        options = {"data": str(data), "minutes": minutes, **vars(sample)}
        line = call(measured, {"KERAS_BACKEND": "jax"}, True, **options).result
        behind += [sample.name] if line["against_best"][2] < 0 else []
        print(json.dumps({"sample": sample.name, **line}), flush=True)
    machine = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    print(json.dumps({"significantly_behind": behind, **machine}))


def measured(data: str, minutes: float | None, **of_sample: Any) -> dict[str, Any]:
    """Returns the figures of one sample."""
    import recsys
    from recsys.system.process import run_stage, stage_environment

    sample = Sample(**of_sample)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        events, times, tokens = _events(Path(data), sample)
        train, later, times = _held_out(events, times, sample)
        order: Order = "none" if not sample.order else "file" if times is None else "time"
        rule = SplitRule("last_out" if sample.order else "random", order)
        write_data_folder(train, folder / "data", tokens, rule=rule, times=times, later=later)
        stage = TrainStage(model=AutoConfig(minutes=minutes))
        (folder / "stage.json").write_text(stage.model_dump_json())
        words = words_of(config=folder / "stage.json", data=folder / "data", out=folder / "model")
        seconds = run_stage("recsys.stages.train", words, stage_environment("jax"))["seconds"]
        choice = json.loads((folder / "model" / "training.json").read_text())["choice"]
        result = recsys.evaluate(
            folder / "model", folder / "data", baselines=BASELINES, k=(10,), progress=False
        ).content
    figures = {"default": result["metrics"], **result["baselines"]}
    best = max(result["baselines"], key=lambda name: result["baselines"][name][_METRICS[0]])
    against = result["comparisons"][best][_METRICS[0]]
    against = [round(x, 4) for x in (against["difference"], *against["difference_interval"])]
    return {
        "users": len(train),
        "items": len(np.unique(train.items)),
        "events_per_user": round(len(train.items) / len(train), 1),
        "seconds": round(seconds, 1),
        "choice": choice,
        "best": best,
        "against_best": against,
        **{who: {m: round(x[m], 4) for m in _METRICS} for who, x in figures.items()},
    }


def _events(data: Path, sample: Sample) -> tuple[Csr, np.ndarray | None, Bags]:
    """Returns the events of a sample's users, the oldest first, their times and the features."""
    times: np.ndarray | None
    if sample.of == _FILMS:
        events, times, tokens = _films(ROOT / "data" / "ml-latest-small")
    else:
        split = read_split(data / sample.of, "valid")
        events, times, tokens = split.train, split.times, split.item_tokens
    n_users = sample.users or len(events)
    users = np.sort(np.random.default_rng(0).permutation(len(events))[:n_users])
    starts, ends = events.offsets[users], events.offsets[users + 1]
    if sample.newest is not None:
        starts = np.maximum(starts, ends - sample.newest)
    places = [np.arange(a, b) for a, b in zip(starts, ends, strict=True)]
    every = np.concatenate(places)
    items = np.unique(events.items[every])  # Others would be items without events.
    lists = [np.searchsorted(items, events.items[at]).tolist() for at in places]
    bags = {name: [bag[i] for i in items] for name, bag in tokens.items()}
    times = None if times is None or not sample.order else times[every]
    return Csr.of_lists(lists, len(items)), times, bags if sample.features else {}


def _held_out(
    events: Csr, times: np.ndarray | None, sample: Sample
) -> tuple[Csr, Csr, np.ndarray | None]:
    """Returns training and held-out events, and the times of the former."""
    lengths = np.diff(events.offsets)
    if sample.order:
        is_held = np.zeros(len(events.items), bool)
        is_held[events.offsets[1:][lengths > 1] - 1] = True
    else:
        draw = np.random.default_rng(1).random(len(events.items))
        is_held = (draw < _SHARE) & (lengths[events.users] > 1)
        is_held[events.offsets[:-1]] = False  # A user keeps one event.
    kept, later = (
        Csr.of_pairs(events.users[which], events.items[which], len(events), events.n_items)
        for which in (~is_held, is_held)
    )
    return kept, later, None if times is None else times[~is_held]


def _films(folder: Path) -> tuple[Csr, np.ndarray, Bags]:
    """Returns the shipped ratings by time, and the genres."""
    import pyarrow.csv as pv

    ratings, films = (pv.read_csv(folder / f"{name}.csv") for name in ("ratings", "movies"))
    names = ("userId", "movieId", "timestamp")
    texts = ratings.select(names).cast(pa.schema([(name, pa.string()) for name in names]))
    is_whole = pc.match_substring_regex(texts["timestamp"], r"^\d+$")  # Some rows are damaged.
    user, film, time = (texts.filter(is_whole)[name].cast(pa.int64()).to_numpy() for name in names)
    ids = films["movieId"].to_numpy()
    order = np.lexsort((time, user))
    users = np.unique(user[order], return_inverse=True)[1]
    row = np.argsort(ids)[np.searchsorted(np.sort(ids), film[order])]
    genres = [text.split("|") for text in films["genres"].to_pylist()]
    events = Csr.of_pairs(users, row, int(users.max()) + 1, len(ids))
    return events, time[order], {"genres": genres}


if __name__ == "__main__":
    run(main)
