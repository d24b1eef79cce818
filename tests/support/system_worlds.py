"""A small model in both its forms, and data folders of its own and of other vocabularies."""

import dataclasses
import json
from pathlib import Path

import numpy as np
from data_folders import counted, event_table, write_data, write_embeddings
from on_tensorflow import run_on_tensorflow

from recsys.config import TrainConfig, TrainStage, TwoTowerConfig, VocabularyConfig
from recsys.data.catalogue import FeatureBags
from recsys.models import ModelInputs, ModelSpec, TwoTower
from recsys.tasks.model_folder import save_model

HISTORY, CUT = 4, 900
_EXPORT = Path(__file__).with_name("small_world.py")


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


def write_world_data(folder, events, users, items):
    """Writes a data folder of events (user id, item id, time)."""
    parts = [[event for event in events if (event[2] >= CUT) == late] for late in (False, True)]
    users, items = (
        counted(ids, [event[place] for event in parts[0]], config)
        for place, (ids, config) in enumerate((users, items))
    )
    rng = np.random.default_rng(6)
    names = items.names_of_rows()
    genres = FeatureBags("genres", 4, rng.integers(0, 4, (len(names), 2)).astype(np.int32))
    plans = FeatureBags("plan", 3, rng.integers(0, 3, (users.n_rows, 1)).astype(np.int32))
    titles = [f"Title {name}" if name else "" for name in names]
    tables = (event_table(part, users, items) for part in parts)
    write_data(folder, CUT, *tables, users, items, [genres], [plans], titles)


def write_model(folder, data, seed=3, **options):
    """Writes a model of random weights, as a training would."""
    inputs = ModelInputs.open(data)
    config = TwoTowerConfig(dim=8, feature_dim=3, history=HISTORY, widths=(6,), **options)
    spec = ModelSpec.for_data(config, inputs.users.n_rows, inputs.catalogue, inputs.user_features)
    model = TwoTower(spec, seed=seed)
    model.build()
    for number, variable in enumerate(model.weights):
        if "steps" not in variable.path and "int" not in str(variable.dtype):
            rng = np.random.default_rng([seed, number])
            variable.assign(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    if (term := model.terms.get("transitions")) is not None:
        rng, shape = np.random.default_rng(seed), term.following.shape
        rows = rng.integers(0, shape[0], shape, np.int32)
        term.following.assign(rows)
        is_trained = (inputs.items.row_counts > 0) & inputs.items.has_id()
        term.shares.assign(rng.random(shape, np.float32) * (rows > 0) * is_trained[:, None])
        term.weight.assign(0.5)
    save_model(folder, model, TrainStage(model=config, train=TrainConfig()), data)
    rng = np.random.default_rng(1)
    user_row = rng.integers(0, inputs.users.n_rows, 30).astype(np.int32)
    history = rng.integers(0, inputs.items.n_rows, (30, HISTORY)).astype(np.int32)
    history[:5], history[5:10, 2:] = 0, 0
    write_embeddings(folder, model, inputs, user_row, history)
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
    write_world_data(folder / "data", events, (own_users, shared[0]), (own_items, shared[1]))
    # A later world: items 5 … 24 in another order, ten new items, and no hash rows.
    known = [*(items[n] for n in rng.permutation(np.arange(5, 25))), *(f"n{n}" for n in range(10))]
    people = [*(users[n] for n in rng.permutation(35)), "newcomer"]
    events = [*make_events(rng, 500, people, [*known, "i0", "nothing"]), *late]
    plain = VocabularyConfig()
    write_world_data(folder / "later", events, (people[5:], plain), (known, plain))


def make_world(folder):
    """Writes a world; exports its model, which takes some seconds."""
    make_data(folder)
    terms = ({"type": "transitions", "count": 3},)
    write_model(folder / "model", folder / "data", terms=terms)
    write_model(folder / "other", folder / "data", seed=9)
    (folder / "export.json").write_text(json.dumps({"name": "tiny", "export": {"k": 5}}))
    export(folder, folder / "model", folder / "bundle")
    return world_in(folder)


def world_in(folder):
    """Returns the world in a folder."""
    return World(*(folder / field.name for field in dataclasses.fields(World)))


def export(folder, model, out):
    """Exports a model of the world in `folder`."""
    run_on_tensorflow(_EXPORT, folder, model, out)
