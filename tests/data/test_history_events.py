"""Histories that hold other events than positives, against plain Python."""

import numpy as np
import pytest
from batch_sources import N_EVENTS, N_ITEMS, N_USERS, make_log
from split_worlds import make, write
from training_runs import on_devices

from recsys.config import (
    BlessConfig,
    EvaluateConfig,
    EvaluateStage,
    InteractionsConfig,
    TrainConfig,
    TrainStage,
    TwoTowerConfig,
)
from recsys.data.hold_out import KeptEvents
from recsys.data.ingest.ingestion import InteractionSource
from recsys.data.store import serving_histories
from recsys.data.vocabulary import Vocabulary
from recsys.evaluation.evaluation_file import evaluate
from recsys.tasks.retrieval.judging.queries import make_queries
from recsys.tasks.retrieval.training.batches import read_events
from recsys.tasks.retrieval.training.epoch_work import held_back_queries
from recsys.training.stage import train

LENGTH, DAY, START = 6, 86_400, 19_783 * 86_400


def padded(values, length=LENGTH):
    return (values[::-1] + [0] * length)[:length]


@pytest.mark.parametrize("draw", ["newest", "random"])
@pytest.mark.parametrize("history_of", ["past", "others"])
def test_examples_are_positives_and_histories_hold_all(history_of, draw):
    rng = np.random.default_rng(4)
    user, item = rng.integers(1, N_USERS, N_EVENTS), rng.integers(1, N_ITEMS, N_EVENTS)
    time, positive = rng.integers(0, 40, N_EVENTS), rng.random(N_EVENTS) < 0.4
    number = np.arange(N_EVENTS, dtype=np.uint8)[:, None] + 1
    log = make_log(user, item, time, positive=positive, features={"number": number})
    order = np.lexsort((item, time, user))
    order = order[positive[order]]  # The events of the log.
    assert log.item_row[:].tolist() == item[order].tolist()
    held = np.sort(rng.choice(len(log), 9, replace=False))
    if draw == "newest":
        held = np.sort(np.argsort(time[order], kind="stable")[-9:])
    events = KeptEvents(log, held, draw)
    hidden = {int(number[order[n], 0]) for n in held}
    if draw == "random":  # Views of a held-back item would give it away.
        pairs = {(user[order[n]], item[order[n]]) for n in held}
        views = [n for n in range(N_EVENTS) if (user[n], item[n]) in pairs and not positive[n]]
        hidden |= {n + 1 for n in views}
        assert views
    kept = np.delete(order, held)
    assert events.item_counts(N_ITEMS).tolist() == np.bincount(item[kept], minlength=20).tolist()

    in_order = np.lexsort((positive, item, time, user))
    by_number = {n + 1: n for n in in_order.tolist() if n + 1 not in hidden}
    model = TwoTowerConfig(history=LENGTH, history_of=history_of)
    read = read_events(
        events,
        np.arange(len(events)),
        model,
        TrainConfig(known_positives=3),
        attributes=("number",),
    )
    assert read["item_row"].tolist() == item[kept].tolist()
    for at, own in enumerate(kept.tolist()):
        mine = [n for n in by_number.values() if user[n] == user[own] and n != own]
        if history_of == "past":
            mine = [n for n in mine if time[n] < time[own]]
        known = [item[n] for n in kept if user[n] == user[own]]
        found = read["history.number"][at, :, 0]
        # Events that only differ in what they are have no order of their own.
        keys = [(time[n], item[n]) for n in mine]
        assert [(time[n - 1], item[n - 1]) for n in found if n] == keys[::-1][:LENGTH]
        rows = [0 if history_of == "others" and i == item[own] else i for _, i in keys]
        assert read["history"][at].tolist() == padded(rows)
        assert read["known"][at].tolist() == padded(known, 3)

    queries = held_back_queries(events, model, 1000)
    each_moment = history_of == "past" and draw == "newest"
    for query in range(len(queries)):
        row = queries.user_row[query]
        labels = queries.positives.rows[slice(*queries.positives.offsets[query : query + 2])]
        now = min(time[n] for n in order[held] if user[n] == row and item[n] in labels)
        mine = [n for n in by_number.values() if user[n] == row]
        if draw == "newest":
            mine = [n for n in in_order if user[n] == row and time[n] < now]
        assert queries.histories(LENGTH)[query].tolist() == padded([int(item[n]) for n in mine])
        if each_moment:
            seen = [item[n] for n in mine if positive[n]]
            assert set(seen) <= set(queries.seen.part(slice(query, query + 1)).rows)


def sessions(n_users=200, n_items=30, n=6, seed=0):
    """Rows (user, item, time, kind): who views an item buys the next one a minute later."""
    rng = np.random.default_rng(seed)
    for user in range(n_users):
        for time in np.sort(rng.choice(10 * 24, n, replace=False)).tolist():
            viewed, at = int(rng.integers(n_items)), START + 3600 * time
            yield f"u{user}", f"i{viewed}", at, "view"
            yield f"u{user}", f"i{(viewed + 1) % n_items}", at + 60, "purchase"
            yield f"u{user}", f"i{int(rng.integers(n_items))}", at + 120, "search"


def ingested(out, rows, **more):
    """Ingests the rows, and returns the store."""
    files = write(out / "a.csv", rows, "user,item,at,what")
    columns = {"user": "user", "item": "item", "timestamp": "at", "event": "what"}
    config = InteractionsConfig.model_validate(
        {"files": files, "columns": columns, **more}, strict=False
    )
    return make(InteractionSource(interactions=config, eval_share=0.25), out)[1]


LABELS = {"labels": {"buy": {"column": "what", "values": ["purchase"]}}}
KINDS = {"positive_events": ["purchase"]}
VIEWS = {"history_events": ["view", "purchase"]}


@pytest.mark.parametrize("positives", [KINDS, LABELS], ids=["kinds", "labels"])
def test_views_are_in_histories_and_nowhere_else(tmp_path, positives):
    rows = list(sessions(40, n=4))
    rows += [("new", "i1", START, "view"), ("new", "rare", START + 5, "view")]
    plain = ingested(tmp_path / "plain", rows, **positives)
    store = ingested(tmp_path / "views", rows, **positives, **VIEWS)
    assert store.cut == plain.cut
    for part in ("train", "eval"):
        a, b = getattr(store, part), getattr(plain, part)
        assert a.item_row[:].tolist() == b.item_row[:].tolist()
        assert a.tied[:].tolist() == b.tied[:].tolist()
    items, before = (
        Vocabulary.load(tmp_path / name / "data" / "vocabulary" / "items.parquet")
        for name in ("views", "plain")
    )
    assert items.row_counts.tolist() == before.row_counts.tolist()
    names = items.ids_of_rows.to_pylist()

    def with_row(rows):
        return [row[1] for row in rows if row[1] in names]

    queries = make_queries(store, "each_moment")
    histories, old = queries.histories(50), make_queries(plain, "each_moment")
    assert queries.seen.rows.tolist() == old.seen.rows.tolist()
    asked = [row for row in sorted(rows, key=lambda row: (row[0], row[2])) if row[2] >= store.cut]
    asked = [row for row in asked if row[3] == "purchase"]
    assert len(asked) == len(queries)
    for query, (user, _, now, _) in enumerate(asked):
        mine = [r for r in rows if r[0] == user and r[2] < now and r[3] != "search"]
        found = [names[row] for row in histories[query] if names[row]]
        assert found == with_row(sorted(mine, key=lambda r: -r[2]))

    served = serving_histories(store, times=True)
    for user, id_ in enumerate(served.ids.to_pylist()):
        own = slice(*served.offsets[user : user + 2])
        mine = [r for r in sorted(rows, key=lambda r: r[2]) if r[0] == id_ and r[3] != "search"]
        found = [names[row] for row in served.item_rows[own] if names[row]]
        assert found == with_row(mine)
        assert served.is_positive[own].tolist() == [r[3] == "purchase" for r in mine]
    if positives is LABELS:
        train = store.train_rows
        at = np.flatnonzero(train.labels["buy"][:] == 1)
        ends = store.train.history.ends(np.arange(len(store.train)))
        assert train.history_end[at].tolist() == ends.tolist()


def test_all_good_rows_are_in_histories(tmp_path):
    store = ingested(tmp_path, sessions(40, n=4), **LABELS, history_events="all")
    for log, rows in ((store.train, store.train_rows), (store.eval, store.eval_rows)):
        assert log.history.item_row[:].tolist() == rows.item_row[:].tolist()
        assert log.history.is_positive.tolist() == (rows.labels["buy"][:] == 1).tolist()
        keys = [*zip(rows.user_index(np.arange(len(rows))), rows.timestamp[:], strict=True)]
        assert rows.history_end[:].tolist() == [keys.index(key) for key in keys]
    assert not store.train_rows.labels["buy"][:].all()


@pytest.mark.pipeline
@pytest.mark.parametrize("pooling", ["mean", pytest.param("sasrec", marks=pytest.mark.thorough)])
def test_views_that_predict_purchases_are_learned(tmp_path, pooling):
    kind = {"type": "sasrec", "layers": 1, "heads": 1} if pooling == "sasrec" else pooling
    history = {"sasrec": 8, "mean": 1}[pooling]
    model = TwoTowerConfig.model_validate(
        {"dim": 16, "history": history, "widths": [16], "pooling": kind}, strict=False
    )
    stage = TrainStage(model=model, train=TrainConfig(batch_size=64, epochs=25, validation=None))
    judged = EvaluateStage(
        evaluate=EvaluateConfig(k=(3,), baselines=("popularity",), resamples=100),
        bless=BlessConfig(metric="recall@3", at_least=0.0, over={}, over_blessed=0.0),
    )
    ingested(tmp_path, sessions(), **KINDS, **VIEWS)
    with on_devices(1):
        train(stage, tmp_path / "data", tmp_path / "model")
        result = evaluate(judged, tmp_path / "model", tmp_path / "data", tmp_path)
    # Views are uniform, so purchases alone predict 3 of 30 items.
    assert result["metrics"]["recall@3"] > 0.9
