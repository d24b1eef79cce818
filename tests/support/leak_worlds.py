"""Made-up events in which a retriever without popularity is worth ranking behind."""

import numpy as np
from split_worlds import write

import recsys
from recsys.config import DataConfig
from recsys.models.inference import ScoreInference
from recsys.models.ranking_model import RETRIEVER as LIST
from recsys.pair.config import PairStage
from recsys.pair.lists import list_features, normalised
from recsys.tasks.model_folder import load_model
from recsys.tasks.ranking.rows import Rows, model_inputs
from recsys.tasks.retrieval.judging.queries import make_queries
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.systems import System, open_folder

DAY, START = 86_400, 19_783 * 86_400
RETRIEVER = {
    "model": {"type": "two_tower", "dim": 8, "history": 4, "widths": [16]},
    "train": {
        "batch_size": 64,
        "uniform_negatives": 0,
        "log_q_correction": 0.0,  # So that its scores don't tell popular items from others.
        "table_learning_rate": 0.3,
        "epochs": 20,
    },
}
RANKER = {
    "model": {"type": "dcn_v2", "dim": 8, "history": 4, "widths": [16], "dropout": 0.0},
    "labels": {"like": 1.0},
    "candidates": 40,
    "held_back": 0.3,
    "negatives": 8,
    "train": {"batch_size": 288, "epochs": 6, "tower_learning_rate": 0.003, "validation": None},
}


def events(n_users=200, n_items=100, n=24, n_tastes=5, seed=0):
    """Returns rows (user, item, time, rating): popular items, most of them of the user's taste."""
    rng = np.random.default_rng(seed)
    popularity = 1 / (1 + np.arange(n_items)) ** 0.9
    rows = []
    for user in range(n_users):
        fits = np.arange(n_items) % n_tastes == user % n_tastes
        weight = popularity * np.where(fits, 6.0, 1.0)
        items = rng.choice(n_items, n, replace=False, p=weight / weight.sum())
        times = START + np.sort(rng.choice(60 * DAY, n, replace=False))
        rows += [
            (f"u{user}", f"i{item}", time, rng.choice([3, 4, 5]))
            for item, time in zip(items, times, strict=True)
        ]
    return rows


def ingested(folder, **sizes):
    """Writes and ingests the events; returns the opened data folder."""
    write(folder / "rows.csv", events(**sizes), "user,item,time,rating")
    interactions = {
        "files": str(folder / "rows.csv"),
        "columns": {"user": "user", "item": "item", "timestamp": "time"},
        "labels": {"like": {"column": "rating", "at_least": 4}},
        "positive": "like",
    }
    config = {"interactions": interactions, "eval_share": 0.2}
    data = DataConfig.model_validate(config, strict=False)
    return recsys.ingest(data, folder / "data", progress=False)


def pair_stage(**ranker):
    """Returns the config of a pair."""
    stage = {**RETRIEVER, "ranker": {**RANKER, **ranker}}
    return PairStage.model_validate(stage, strict=False)


def inner(share=RANKER["held_back"]):
    """Returns the config of the retriever that doesn't learn from the newest events."""
    held_back = {"like": "newest", "share": share, "patience": None}
    return {**RETRIEVER, "train": {**RETRIEVER["train"], "validation": held_back}}


def rerank(folder, retriever, data, stage):
    """Returns the NDCG@10 of a retriever's lists and of the ranker's, `[users]` each, at the cut.

    Args:
        folder: Model folder of the ranker.
        retriever: Model folder of the retriever.
        data: The data.
        stage: Config of the pair.
    """
    n = stage.ranker.candidates
    system = System("the retriever", open_folder(retriever, "it"), data)
    queries = make_queries(data.store, "at_cut", inputs=system.inputs)
    scorer = system.scorer_of(queries)
    lists = rank(scorer, queries.positives, queries.seen, system.is_candidate, n)
    trained = load_model(folder)
    config = trained.model.spec.config
    rows = Rows.of(data.store, "eval", trained.inputs, config, "cut")
    first = data.store.eval_rows.offsets[queries.user]
    read = rows.of_items(rows.read(np.repeat(first, n)), lists.top.ravel())
    place = np.tile(np.arange(1, n + 1, dtype=np.float32), len(queries))
    read[LIST] = list_features(place, normalised(lists.top_scores).ravel(), n)

    def of_rows(at):
        return model_inputs({name: x[at] for name, x in read.items()}, trained.inputs, config)

    blocks = [*ScoreInference(trained.model).blocks(of_rows, len(place))]
    scores = np.concatenate(blocks)[:, 0].reshape(-1, n)
    ranked = np.take_along_axis(lists.top, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return [
        np.array(
            [ndcg(top, queries.positives.part(slice(q, q + 1)).rows) for q, top in enumerate(x)]
        )
        for x in (lists.top, ranked)
    ]


def ndcg(top, positives, k=10):
    """Returns the NDCG@k of a list of items."""
    gains = 1 / np.log2(2 + np.arange(k))
    return (gains * np.isin(top[:k], positives)).sum() / gains[: len(positives)].sum()
