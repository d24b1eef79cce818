"""Made-up data split in every way: from files to the data folder, as a run makes it."""

import random

import apache_beam as beam
import numpy as np

from recsys.config import InteractionColumns, InteractionsConfig, VocabulariesConfig
from recsys.data.ingest.entity_rows import write_entities
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
from recsys.data.ingest.store_writer import build_store, make_vocabularies
from recsys.data.ingest.tasks import LOCAL_RUNNER
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary


def made_up(n_users=60, seed=0):
    """Returns rows (user, item, rating), repeats among them, users of one row too."""
    chance = random.Random(seed)
    rows = [
        (f"u{user}", f"i{chance.randrange(30)}", chance.choice("12345"))
        for user in range(n_users)
        for _ in range(chance.randrange(1, 9))
    ]
    chance.shuffle(rows)
    return rows


def write(path, rows, header="user,item,rating"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def source(files, split, **more):
    columns = {"user": "user", "item": "item", "rating": "rating"} | more.pop("columns", {})
    share = more.pop("eval_share", 0.25)
    interactions = InteractionsConfig(
        files=files, columns=InteractionColumns(**columns), positive_at_least=3.0, **more
    )
    return InteractionSource(interactions=interactions, eval_share=share, split=split)


def make(config, out):
    """Ingests, and writes the data folder as a run does; returns summary and store."""
    summary = ingest_interactions(
        config, str(out / "examples"), str(out / "letters"), beam.Pipeline(LOCAL_RUNNER)
    )
    vocabularies = out / "data" / "vocabulary"
    vocabularies.mkdir(parents=True)
    make_vocabularies(
        out / "examples", summary["cut"], {}, None, vocabularies, VocabulariesConfig(), config.rule,
    )  # fmt: skip
    write_entities(out / "data", None, None)
    folder = out / "data" / "store"
    build_store(out / "examples", vocabularies, summary["cut"], folder, config.rule)
    return summary, InteractionStore.open(folder, verify=True)


def events(out, store, part):
    """Returns the (user, item) of each event of a part, in the order of the store."""
    log, users = getattr(store, part), getattr(store, f"{part}_users")
    items = Vocabulary.load(out / "data" / "vocabulary" / "items.parquet").ids_of_rows.to_pylist()
    user_of = users.ids.take(log.user_index(np.arange(len(log)))).to_pylist()
    rows = np.asarray(log.item_row[np.arange(len(log))]).tolist()
    return [(user, items[row]) for user, row in zip(user_of, rows, strict=True)]


def positives(rows):
    return [(user, item) for user, item, rating in rows if int(rating) >= 3]


def unique(rows):
    """Returns the first row of each user and item."""
    first = {row[:2]: row for row in reversed(rows)}
    return [first[pair] for pair in dict.fromkeys(row[:2] for row in rows)]


def of_users(pairs):
    by_user = {}
    for user, item in pairs:
        by_user.setdefault(user, []).append(item)
    return by_user
