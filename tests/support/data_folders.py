"""Data folders, and what a model folder has beside its weights, as ingestion and training do."""

import numpy as np
import pyarrow as pa

from benchmarks.stores import save_catalogue, save_features, write_store
from recsys.data.catalogue import Catalogue
from recsys.data.event_features import TIME_COLUMN
from recsys.data.vocabulary import Vocabulary
from recsys.models import ModelInputs
from recsys.models.inference import embed_catalogue, embed_queries


def counted(ids, seen, config=None):
    """A vocabulary of `ids` with the counts of the events' ids `seen`, of which some share rows."""
    bare = Vocabulary(pa.array(ids), np.zeros(len(ids)), config=config)
    counts = np.bincount(bare.rows(seen), minlength=bare.n_rows)
    first = bare.first_own_row
    return Vocabulary(pa.array(ids), counts[first:], config=config, shared_counts=counts[:first])


def event_table(events, users, items):
    """Events (user id, item id, time) with the rows of two vocabularies."""
    user_ids, item_ids, times = ([event[n] for event in events] for n in range(3))
    rows = {"user_row": users.rows(user_ids), "item_row": items.rows(item_ids)}
    return pa.table({"user_id": user_ids, **rows, "timestamp": pa.array(times, pa.int64())})


def write_data(
    folder, cut, train, held_out, users, items, features=(), user_features=(), titles=None
):
    """Writes a data folder of tables of events; returns what a model reads of it."""
    write_store(folder / "store", cut, train, held_out)
    (folder / "vocabulary").mkdir(parents=True, exist_ok=True)
    users.save(folder / "vocabulary" / "users.parquet")
    items.save(folder / "vocabulary" / "items.parquet")
    names = items.names_of_rows()
    save_catalogue(Catalogue(names, titles or names, tuple(features)), folder / "catalogue")
    if user_features:
        save_features(user_features, folder / "user_features")
    return ModelInputs.open(folder)


def write_embeddings(folder, model, inputs, user_row, history, raw=None):
    """Writes, and returns, the embeddings of some queries and of all items: as a trainer does."""
    names = [x.name for x in inputs.event_inputs(model.spec.config)]
    given = raw.given((), TIME_COLUMN, names) if names else {}
    query = embed_queries(model, user_row, history, inputs, given)
    given |= raw.arrays() if names else {}
    np.savez(folder / "probe.npz", user_row=user_row, history=history, query=query, **given)
    candidates = embed_catalogue(model, inputs)
    np.save(folder / "candidates.npy", candidates)
    return query, candidates
