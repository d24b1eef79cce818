"""What a retriever's lists give to a ranker, against lists that NumPy makes of each row's past."""

import shutil

import numpy as np
import pyarrow as pa
import pytest
from leak_worlds import RETRIEVER, ingested, inner, pair_stage, rerank
from training_runs import train_here

from recsys.data.candidates import ARRAYS, Candidates
from recsys.data.dataset import Data
from recsys.data.event_log import ShardedColumn
from recsys.errors import RecsysError
from recsys.models import model_class
from recsys.models.inference import embed_catalogue, embed_queries
from recsys.pair import draw as module
from recsys.pair.config import ranker_stage
from recsys.pair.draw import draw
from recsys.pair.lists import list_features
from recsys.tasks.model_folder import load_model
from recsys.training.stage import write_model
from recsys.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    ingested(folder)
    train_here(inner(), folder / "data", folder / "inner")
    return folder


def drawn(world, name="drawn", retriever="inner", **ranker):
    stage = pair_stage(**ranker)
    draw(stage, Data(world / "data"), world / retriever, world / name)
    return Candidates.open(world / name)


def pasts(data, rows):
    """Yields user and items of the past of each row, oldest first, by plain Python."""
    log, events = data.store.train_rows, data.events("train").to_pylist()
    users = data.store.train_users.ids.to_pylist()
    for row in rows:
        user, now = users[int(log.user_index(row))], log.timestamp[row]
        of_user = [e for e in events if e["user_id"] == user and e["timestamp"] < now]
        yield user, [e["item_row"] for e in of_user]


def test_rows_after_the_cut_get_places_scores_and_rates_of_exact_lists(world):
    found, data = drawn(world), Data(world / "data")
    n, log, is_item = 40, data.store.train_rows, data.catalogue.is_item
    times = np.sort(np.asarray(data.train.timestamp))
    cut = times[-round(0.3 * len(times))]
    is_later = (np.asarray(log.timestamp) > cut) & (np.asarray(log.labels["like"]) == 1)
    assert found.rows.tolist() == np.flatnonzero(is_later).tolist()
    chosen = np.arange(0, len(found.rows), 17)
    rows, trained = found.rows[chosen], load_model(world / "inner")
    users, before = zip(*pasts(data, rows), strict=True)
    history = np.zeros((len(rows), 4), np.int32)
    for at, items in enumerate(before):
        newest = items[::-1][:4]
        history[at, : len(newest)] = newest
    user_row = trained.users.rows(pa.array(users, pa.large_string()))
    query = embed_queries(trained.model, user_row, history, trained.inputs)
    scores = query @ embed_catalogue(trained.model, trained.inputs).T
    is_known = is_item & trained.items.is_current()  # One item has later events only.
    assert is_known.sum() < is_item.sum()
    for at, row in enumerate(rows):
        own = np.where(is_known, scores[at], -np.inf)
        own[before[at]] = -np.inf
        best = np.argsort(-own, kind="stable")[:n]
        z = (own[best] - own[best].mean()) / own[best].std()
        items = found.item_row[chosen[at]]
        assert items[0] == log.item_row[row]
        assert np.isin(items[1:5], best).all()
        assert is_item[items].all()
        place = np.array([1 + int(np.flatnonzero(best == x)[0]) if x in best else 0 for x in items])
        # One of each quarter of the list.
        assert ((place[1:5] - 1) // (n // 4)).tolist() == [0, 1, 2, 3]
        features = list_features(np.float32(place), np.float32(z[place - 1]), n)
        np.testing.assert_allclose(found.retriever[chosen[at]], features, atol=1e-4)
        rate = np.where(place > 0, 4 / n, 0) + 4 / is_item.sum()
        np.testing.assert_allclose(found.log_rate[chosen[at]], np.log(rate), rtol=1e-5)


def test_draws_have_the_stated_rates_and_are_reproducible(world, monkeypatch):
    first, again = drawn(world), drawn(world, "again")
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert first.digest == again.digest
    monkeypatch.setattr(module, "_ROWS", 100)  # Blocks change what is drawn, not the lists.
    blocks = drawn(world, "blocks")
    np.testing.assert_allclose(blocks.retriever[:, 0], first.retriever[:, 0], atol=1e-5)
    assert (blocks.item_row != first.item_row)[:, 1:].mean() > 0.5
    n_items = 100
    for k in (8, 3):
        found = first if k == 8 else drawn(world, "few", negatives=k)
        of_list, random = np.split(found.item_row[:, 1:], [k // 2], axis=1)
        place = np.exp((1 - found.retriever[:, 1 : 1 + k // 2, 0]) * np.log(41)).round().astype(int)
        for counts, n, drawn_items in (
            (np.bincount(place.ravel() - 1, minlength=40), 40, of_list),
            (np.unique(random, return_counts=True)[1], n_items, random),
        ):
            assert len(counts) == n
            expected = drawn_items.size / n
            assert np.square(counts - expected).sum() / expected < n + 5 * np.sqrt(2 * n)


def test_impressions_get_places_but_no_items(world):
    data, rows = Data(world / "data"), drawn(world)
    log = data.store.train_rows
    log.impression = ShardedColumn([np.ones(len(shard), np.int32) for shard in log.shards])
    draw(pair_stage(), data, world / "inner", world / "shown")
    shown = Candidates.open(world / "shown")
    assert shown.n_negatives == 0
    at = np.isin(shown.rows, rows.rows)  # Those with label 0 are there, too.
    assert at.sum() == len(rows.rows) < len(at)
    np.testing.assert_array_equal(shown.retriever[at, 0], rows.retriever[:, 0])
    log.shards = ()  # As if no row had a later time.
    with pytest.raises(RecsysError, match=r"R398.*newer"):
        draw(pair_stage(), data, world / "inner", world / "none")


def judged(world, seed):
    """Returns NDCG@10 of the users alone, with lists of `inner`, and with lists of `full`."""
    ingested(world, seed=seed)
    train_here(inner(), world / "data", world / "inner")
    train_here(RETRIEVER, world / "data", world / "full")
    stage, values = pair_stage(), {}
    for name in ("inner", "full"):
        drawn(world, "lists", name)
        data = Data(world / "data", candidates=world / "lists")
        own = ranker_stage(stage)
        model = model_class(own.model).from_config(own, data)
        result = Trainer.of_stage(own, world / "checkpoints", verbose=0).fit(model, data)
        shutil.rmtree(world / "ranker", ignore_errors=True)
        write_model(world / "ranker", result, data)
        alone, values[name] = rerank(world / "ranker", world / "full", data, stage)
    return alone, values["inner"], values["full"]


@pytest.mark.thorough
def test_lists_of_a_retriever_that_saw_the_later_rows_make_the_pair_worse(tmp_path):
    worlds = [judged(tmp_path / str(seed), seed) for seed in range(3)]
    alone, without_leak, leaked = map(np.concatenate, zip(*worlds, strict=True))
    for worse in (alone, leaked):
        difference = without_leak - worse
        error = difference.std() / np.sqrt(len(difference))
        assert difference.mean() > 2 * error
