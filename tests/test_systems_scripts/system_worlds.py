"""A small model in both its forms, and data folders of its own and of other vocabularies."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from on_tensorflow import run_on_tensorflow

from benchmarks.stores import write_store
from recsys.config import TrainConfig, TrainStage, TwoTowerConfig, VocabularyConfig
from recsys.data.catalogue import Catalogue, FeatureBags, save_features
from recsys.data.vocabulary import Vocabulary
from recsys.models import ModelInputs, ModelSpec, TwoTower, save_model
from recsys.models.inference import embed_catalogue, embed_queries

HISTORY, CUT = 4, 900
_EXPORT = Path(__file__).parent.parent / "test_export_scripts" / "small_world.py"


@dataclasses.dataclass(frozen=True)
class World:
    """The folders; `later` has other rows, other hash rows and other items than `data`.

    `bundle` was made of `model`; `other` is a model folder of other weights.
    """

    data: Path
    later: Path
    model: Path
    other: Path
    bundle: Path


def write_data(folder, events, users, items):
    """Writes a data folder of events (user id, item id, time)."""
    train = [event for event in events if event[2] < CUT]
    vocabularies = {}
    for side, place, (ids, config) in (("users", 0, users), ("items", 1, items)):
        bare = Vocabulary(pa.array(ids), np.zeros(len(ids)), config=config)
        rows = bare.rows([event[place] for event in train])
        counts = np.bincount(rows, minlength=bare.n_rows)
        own, shared = counts[bare.first_own_row :], counts[: bare.first_own_row]
        made = Vocabulary(pa.array(ids), own, config=config, shared_counts=shared)
        (folder / "vocabulary").mkdir(parents=True, exist_ok=True)
        made.save(folder / "vocabulary" / f"{side}.parquet")
        vocabularies[side] = made

    def table(of):
        user_ids, item_ids, times = ([event[n] for event in of] for n in range(3))
        rows = vocabularies["users"].rows(user_ids), vocabularies["items"].rows(item_ids)
        columns = {"user_id": user_ids, "user_row": rows[0], "item_row": rows[1]}
        return pa.table({**columns, "timestamp": pa.array(times, pa.int64())})

    write_store(folder / "store", CUT, table(train), table([e for e in events if e[2] >= CUT]))
    rng = np.random.default_rng(6)
    names = vocabularies["items"].names_of_rows()
    genres = rng.integers(0, 4, (len(names), 2)).astype(np.int32)
    titles = [f"Title {name}" if name else "" for name in names]
    Catalogue(names, titles, (FeatureBags("genres", 4, genres),)).save(folder / "catalogue")
    plans = rng.integers(0, 3, (vocabularies["users"].n_rows, 1)).astype(np.int32)
    save_features((FeatureBags("plan", 3, plans),), folder / "user_features")


def write_model(folder, data, seed=3, **options):
    """Writes a model of random weights, as a training would."""
    inputs = ModelInputs.open(data)
    config = TwoTowerConfig(dim=8, feature_dim=3, history=HISTORY, widths=(6,), **options)
    spec = ModelSpec.for_data(config, inputs.users.n_rows, inputs.catalogue, inputs.user_features)
    model = TwoTower(spec, seed=seed)
    model.build()
    for number, variable in enumerate(model.weights):
        if "steps" not in variable.path:
            rng = np.random.default_rng([seed, number])
            variable.assign(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    save_model(folder, model, TrainStage(model=config, train=TrainConfig()), data)
    rng = np.random.default_rng(1)
    user_row = rng.integers(0, inputs.users.n_rows, 30).astype(np.int32)
    history = rng.integers(0, inputs.items.n_rows, (30, HISTORY)).astype(np.int32)
    history[:5], history[5:10, 2:] = 0, 0
    query = embed_queries(model, user_row, history, inputs)
    np.savez(folder / "probe.npz", user_row=user_row, history=history, query=query)
    np.save(folder / "candidates.npy", embed_catalogue(model, inputs))
    training = {"steps": 1, "examples": 1, "devices": 1, "platform": "cpu", "seconds": 1.0}
    (folder / "training.json").write_text(json.dumps(training))


def make_events(rng, n, users, items):
    """Events of any of the users and items, a tenth of them from the cut on."""
    who, what = rng.choice(users, n), rng.choice(items, n)
    times = rng.permutation(n) * 1000 // n
    return [(str(u), str(i), int(t)) for u, i, t in zip(who, what, times, strict=True)]


def make_data(folder):
    """Writes the data folders of a world."""
    rng = np.random.default_rng(5)
    users, items = [f"u{n}" for n in range(40)], [f"i{n}" for n in range(30)]
    # The last ten of each have no row of their own; row 3 of the own ones is free.
    own_users = [None if n == 3 else id_ for n, id_ in enumerate(users[:30])]
    own_items = [None if n == 3 else id_ for n, id_ in enumerate(items[:20])]
    shared = VocabularyConfig(hash_buckets=7), VocabularyConfig(hash_buckets=5)
    events = make_events(rng, 700, users, items)
    late = [(f"late{n}", items[n + 5], CUT + n) for n in range(5)]
    events += late
    write_data(folder / "data", events, (own_users, shared[0]), (own_items, shared[1]))
    # What came later: items 5 … 24 in another order, ten new ones, and no hash rows.
    known = [*(items[n] for n in rng.permutation(np.arange(5, 25))), *(f"n{n}" for n in range(10))]
    people = [*(users[n] for n in rng.permutation(35)), "newcomer"]
    events = [*make_events(rng, 500, people, [*known, "i0", "nothing"]), *late]
    plain = VocabularyConfig()
    write_data(folder / "later", events, (people[5:], plain), (known, plain))


def make_world(folder):
    """Writes a world; exports its model, which takes some seconds."""
    make_data(folder)
    write_model(folder / "model", folder / "data")
    write_model(folder / "other", folder / "data", seed=9)
    (folder / "export.json").write_text(json.dumps({"name": "tiny", "export": {"k": 5}}))
    export(folder, folder / "model", folder / "bundle")
    return world_in(folder)


def world_in(folder):
    """Returns the world that lies in a folder."""
    return World(*(folder / field.name for field in dataclasses.fields(World)))


def export(folder, model, out):
    """Exports a model of the world in `folder`."""
    run_on_tensorflow(_EXPORT, folder, model, out)
