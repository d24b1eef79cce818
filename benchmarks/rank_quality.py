"""`python -m benchmarks.rank_quality`: rankers beside peers, by ROC AUC and log loss.

`--data movielens` is ml-latest-small: the label is a rating of at least 4, the features are user,
item, genres, words of the title, year in fives, hour and weekday. 80 % of the events are trained
on, 10 % choose settings, 10 % are judged, split three ways:

- `time`: the newest of all events;
- `text`: the same with the times sorted as text, so that the years before 2001, whose times have
  a digit less, come last;
- `user`: the newest events of each user.

`--data synth` is a world of impressions whose probabilities are known (`recsys synth
--impressions`), split by time; `share of Bayes` is the way from a constant's AUC to the optimum's.

Ours is judged as of the cut, like the peers, which learn nothing from the judged part. It reads the
histories of labelled events, or with `without histories` just the peers' features; `on statistics`
it is judged live, event by event, as LightGBM on statistics is.

Peers run under `uv run --script`; `--peers fuxictr` needs a clone of github.com/reczoo/FuxiCTR in
`--fuxictr`, since its models aren't in its wheel.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import functools
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from typer import Option

from benchmarks import measure
from benchmarks.peers.rank_case import TEST, TRAIN, VALID, RankCase

DataSet = StrEnum("DataSet", ["movielens", "synth"])
Peer = StrEnum("Peer", ["lightgbm", "fuxictr"])
_ALL_DATA, _NO_PEERS, _NO_SETS = [*DataSet], list[Peer](), list[str]()
_SPLITS = ["time", "text", "user"]
METRICS = "roc_auc", "log_loss", "calibration_error"
_PARTS = np.array(["train", "valid", "test"])
_SIZES = 1000, 300, 40_000
"""Users, items and impressions of the synthetic world."""


def main(
    data: list[DataSet] = _ALL_DATA,
    peers: list[Peer] = _NO_PEERS,
    splits: Annotated[list[str], Option(help="Of movielens.")] = _SPLITS,
    seeds: Annotated[int, Option(min=1, help="Runs, with the seeds 0, 1, ….")] = 3,
    set: Annotated[list[str], Option(help="Override of our config, key=value.")] = _NO_SETS,
    movielens: Path = measure.ROOT / "data" / "ml-latest-small",
    fuxictr: Annotated[Path | None, Option(help="Clone of its repository.")] = None,
    baselines: bool = True,
    ours: bool = True,
) -> None:
    """Prints a line for each data set, system and metric."""
    worlds = [("synth", synth)] if "synth" in data else []
    if "movielens" in data:
        worlds += [
            (f"movielens {split}", functools.partial(films, movielens, split=split))
            for split in splits
        ]
    for name, make in worlds:
        with tempfile.TemporaryDirectory() as scratch:
            world = make(Path(scratch))
            world.case.save(f"{scratch}/case.npz")
            if baselines:
                world.show(name, "item mean", [item_mean(world.case)])
                world.show(name, "logistic regression", [logistic_regression(world.case)])
            for who, call in _peers(world, peers, fuxictr):
                world.show(name, who, [call(seed) for seed in range(seeds)])
            if ours:
                for config in sorted(path.stem for path in world.folder.glob("*.yaml")):
                    runs = [our_figures(world, seed, set, config) for seed in range(seeds)]
                    world.print_all(f"{name}, {config}", runs)


@dataclasses.dataclass(frozen=True)
class World:
    """Labelled rows: as tokens for everyone, and as raw files for us.

    Attributes:
        case: The rows.
        folder: Folder of the raw files.
        optimum: True probability of each row `[n]`; None: unknown.
    """

    case: RankCase
    folder: Path
    optimum: np.ndarray | None = None

    def show(self, name: str, who: str, runs: Sequence[np.ndarray]) -> None:
        """Prints the figures of a system's probabilities `[n]` of each seed."""
        test = self.case.is_in(TEST)
        label = self.case.label[test]
        self.print_all(f"{name}, {who}", [figures(label, p[test]) for p in runs])

    def print_all(self, case: str, runs: Sequence[dict[str, float]]) -> None:
        """Prints the figures of the seeds, and the share of Bayes' optimum if it is known."""
        if self.optimum is not None:
            test = self.case.is_in(TEST)
            best = figures(self.case.label[test], self.optimum[test])["roc_auc"]
            share = [(of["roc_auc"] - 0.5) / (best - 0.5) for of in runs]
            runs = [{**of, "share of Bayes": s} for of, s in zip(runs, share, strict=True)]
        for metric in runs[0]:
            values = [of_run[metric] for of_run in runs]
            measure.print_line("rank_quality", f"{case}, {metric}", values, "share")


def figures(label: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Returns the metrics of probabilities."""
    from sklearn.metrics import log_loss, roc_auc_score

    bins = np.array_split(np.argsort(p, kind="stable"), 20)
    gaps = [abs(label[rows].mean() - p[rows].mean()) * len(rows) for rows in bins]
    return {
        "roc_auc": float(roc_auc_score(label, p)),
        "log_loss": float(log_loss(label, np.clip(p, 1e-7, 1 - 1e-7))),
        "calibration_error": float(sum(gaps) / len(p)),
    }


# --- systems


def item_mean(case: RankCase) -> np.ndarray:
    """Returns the smoothed mean label of each row's item before the test part `[n]`."""
    known, item = case.part < TEST, case.tokens["item"]
    n = np.bincount(item[known], minlength=item.max() + 1)
    likes = np.bincount(item[known], case.label[known], item.max() + 1)
    return ((likes + 2 * case.label[known].mean()) / (n + 2))[item]


def logistic_regression(case: RankCase) -> np.ndarray:
    """Returns the probabilities `[n]` with the regularisation that the valid part chose."""
    import scipy.sparse
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    one_hots = []
    for rows in case.tokens.values():
        wide = rows.reshape(len(rows), -1)
        row, place = np.nonzero(wide)
        entries = np.ones(len(row)), (row, wide[row, place])
        one_hots.append(scipy.sparse.csr_matrix(entries, shape=(len(rows), wide.max() + 1)))
    columns = scipy.sparse.hstack(one_hots).tocsr()

    def fitted(strength: float, on: np.ndarray) -> np.ndarray:
        model = LogisticRegression(C=strength, solver="liblinear", random_state=0)
        return model.fit(columns[on], case.label[on]).predict_proba(columns)[:, 1]

    valid = case.is_in(VALID)
    losses = {
        strength: log_loss(case.label[valid], fitted(strength, case.is_in(TRAIN))[valid])
        for strength in (0.1, 0.3, 1.0)
    }
    return fitted(min(losses, key=lambda strength: losses[strength]), case.part < TEST)


def _peers(
    world: World, peers: Sequence[str], fuxictr: Path | None
) -> Iterator[tuple[str, Callable[[int], np.ndarray]]]:
    """Yields the name of each peer, and a function from a seed to its probabilities."""
    kinds: list[tuple[str, str, dict[str, Any]]] = []
    if "lightgbm" in peers:
        kinds.append(("LightGBM", "rank_lightgbm", {"statistics": False}))
        kinds.append(("LightGBM on statistics", "rank_lightgbm", {"statistics": True}))
    if "fuxictr" in peers:
        kinds.append(("FuxiCTR DCNv2", "rank_fuxictr", {"source": str(fuxictr)}))
    folder = world.folder
    for who, script, more in kinds:

        def call(seed: int, script: str = script, more: dict[str, Any] = more) -> np.ndarray:
            paths = {"case": f"{folder}/case.npz", "out": f"{folder}/p.npy"}
            done = measure.watch(measure.peer(script, **paths, seed=seed, **more), memory=False)
            measure.log(f"{script} {seed}: {done.result}, {done.seconds:.0f} s")
            return np.load(paths["out"])

        yield who, call


def our_figures(world: World, seed: int, sets: Sequence[str], config: str) -> dict[str, float]:
    """Returns the metrics of our ranker of one seed, in a process of its own."""
    arguments = {"folder": str(world.folder), "config": config, "seed": seed, "sets": list(sets)}
    try:
        return measure.call(train_and_judge, {"KERAS_BACKEND": "jax"}, **arguments).result
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"Seed {seed} failed; the reason is above.") from error


def train_and_judge(folder: str, config: str, seed: int, sets: list[str]) -> dict[str, float]:
    """Returns the metrics on the test part."""
    import recsys
    from recsys.config import EvaluateStage, TrainStage, stage_of

    whole = recsys.load_config(Path(folder, f"{config}.yaml"), [*sets, f"train.seed={seed}"])
    out = Path(folder, f"data-{config}")
    data = recsys.open_data(out) if out.exists() else recsys.ingest(whole, out, progress=False)
    stage = stage_of(whole, TrainStage)
    model = recsys.models.model_class(stage.model).from_config(stage, data)
    trainer = recsys.Trainer.of_stage(stage, Path(folder, f"run-{config}-{seed}"), verbose=0)
    trained = trainer.fit(model, data)
    judged = recsys.evaluate(
        trained.model, data, baselines=[], config=stage_of(whole, EvaluateStage), progress=False
    )
    measure.log(f"{config} {seed}: {trained.summary().get('validation')}")
    return {name: judged.metrics[name] for name in METRICS}


# --- data


def films(source: Path, folder: Path, *, split: str) -> World:
    """Returns ml-latest-small, and writes its raw files into `folder`."""
    with (source / "movies.csv").open(encoding="utf-8", newline="") as file:
        catalogue = {row["movieId"]: _film(row) for row in csv.DictReader(file)}
    with (source / "ratings.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["timestamp"].isdigit()]
    keys = ("userId", "movieId", "rating", "timestamp")
    user, item, rating, times = (np.array([row[key] for row in rows]) for key in keys)
    moment = times.astype(np.int64)
    order = np.unique(times, return_inverse=True)[1] if split == "text" else moment
    hour, weekday = moment // 3600 % 24, (moment // 86_400 + 3) % 7
    by = user if split == "user" else np.zeros(len(user))
    part = newest_last(order, by)
    words = Counter(word for film in catalogue.values() for word in set(film["words"]))
    known = {word for word, n in words.items() if n >= 3}
    of_row = [catalogue[one] for one in item]
    tokens = {
        "user": _numbered(user),
        "item": _numbered(item),
        "genres": _bags([film["genres"] for film in of_row]),
        "words": _bags([[w for w in film["words"] if w in known] for film in of_row]),
        "year": _numbered(np.array([film["year"] for film in of_row])),
        "hour": (1 + hour).astype(np.int32),
        "weekday": (1 + weekday).astype(np.int32),
    }
    label = (rating.astype(float) >= 4).astype(float)
    # Times in text order count from 2001, a second each.
    seconds = 10**9 + order if split == "text" else moment
    events = [user, item, seconds, rating, hour, weekday, _PARTS[part]]
    names = ["user", "item", "timestamp", "rating", "hour", "weekday", "part"]
    _write(folder / "events.csv", names, zip(*events, strict=True))
    films = [
        (one, " ".join(f["words"]), "|".join(f["genres"]), f["year"])
        for one, f in catalogue.items()
    ]
    _write(folder / "items.csv", ["item", "title", "genres", "year"], films)
    config, statistics = yaml.safe_load_all((Path(__file__).parent / "rank_films.yaml").read_text())
    configs = {"ours": config, "ours without histories": {**config, "model": {"history": 0}}}
    on_statistics = copy.deepcopy(config)
    on_statistics["data"]["interactions"]["features"][1:1] = statistics
    configs["ours on statistics"] = {**on_statistics, "evaluate": {"state": "live"}}
    for name, of_name in configs.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(of_name))
    return World(RankCase(label, part, order, tokens), folder)


def newest_last(order: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Returns the part of each row `[n]`: 80 % of each group train, 10 % choose, 10 % test."""
    part = np.empty(len(order), np.int64)
    for group in np.unique(by):
        rows = np.flatnonzero(by == group)
        rows = rows[np.argsort(order[rows], kind="stable")]
        borders = [int(0.8 * len(rows)), int(0.9 * len(rows))]
        part[rows] = np.searchsorted(borders, np.arange(len(rows)), side="right")
    return part


def synth(folder: Path) -> World:
    """Returns a synthetic world of impressions, and writes its raw files into `folder`."""
    from recsys.synth import synthesize_impressions

    summary = synthesize_impressions(folder / "synth", *_SIZES)
    shown, items, users, truth = (
        _columns(path)
        for path in (summary.impressions, summary.items, summary.users, summary.probabilities)
    )
    moment = shown["timestamp"].astype(np.int64)
    part = newest_last(moment, np.zeros(len(moment)))
    user, item = _numbered(shown["user_id"]), _numbered(shown["item_id"])
    item_row = np.array([int(one[1:]) - 1 for one in shown["item_id"]])
    user_row = np.array([int(one[1:]) - 1 for one in shown["user_id"]])
    price = items["price"].astype(float)
    buckets = np.searchsorted(np.quantile(price, np.arange(1, 10) / 10), price)
    tokens = {
        "user": user,
        "item": item,
        "category": _numbered(items["category"])[item_row],
        "price": (1 + buckets[item_row]).astype(np.int32),
        "segment": _numbered(users["segment"])[user_row],
        "device": _numbered(shown["device"]),
        "hour": (1 + moment // 3600 % 24).astype(np.int32),
        "position": (1 + shown["position"].astype(np.int64)).astype(np.int32),
    }
    names = [*shown, "part"]
    _write(folder / "impressions.csv", names, zip(*shown.values(), _PARTS[part], strict=True))
    for side in (summary.items, summary.users):
        (folder / side.name).write_bytes(side.read_bytes())
    columns = "position: position"
    config = summary.config.read_text().replace(columns, f"{columns}\n      part: part")
    given = "split: given\n  interactions:\n    train_parts: [train]\n    valid_parts: [valid]"
    config = config.replace("  eval_share: 0.1\n", "").replace("interactions:", given, 1)
    # The optimum is that of a click at the row's position.
    config = config.replace("    features:\n", f"    features:\n{_PLACE}", 1)
    (folder / "ours.yaml").write_text(config)
    label = shown["clicked"].astype(float)
    return World(RankCase(label, part, moment, tokens), folder, truth["click"].astype(float))


def _film(row: dict[str, str]) -> dict[str, Any]:
    year = re.search(r"\((\d{4})\)\s*$", row["title"])
    words = re.findall(r"\w+", re.sub(r"\(\d{4}\)\s*$", "", row["title"]).lower())
    return {
        "genres": row["genres"].split("|"),
        "words": list(dict.fromkeys(words)),
        "year": 5 * (int(year[1]) // 5) if year else 0,
    }


def _numbered(values: np.ndarray) -> np.ndarray:
    return (1 + np.unique(values, return_inverse=True)[1]).astype(np.int32)


def _bags(lists: Sequence[Sequence[str]], most: int = 8) -> np.ndarray:
    number = {token: 1 + i for i, token in enumerate(sorted({t for bag in lists for t in bag}))}
    bags = np.zeros((len(lists), most), np.int32)
    for bag, tokens in zip(bags, lists, strict=True):
        bag[: len(tokens)] = [number[token] for token in tokens[:most]]
    return bags


def _columns(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        names, *rows = csv.reader(file)
    return {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def _write(path: Path, names: Sequence[str], rows: Any) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])


_PLACE = """\
      - {name: place, column: position, kind: category, context: true}
"""
if __name__ == "__main__":
    measure.run(main)
