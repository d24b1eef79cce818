"""Small models with random weights, and numpy's reading of them."""

import weakref

import jax
import keras
import numpy as np

from recsys.config import TwoTowerConfig
from recsys.models import ModelSpec, TwoTower
from recsys.models.config import SasRecConfig

DIM, HISTORY, USERS, ITEMS = 8, 5, 11, 13
# Towers without layers and without user ids show the pooled history itself.
BARE = {"user_id": False, "widths": None, "similarity": "dot"}
SEQUENCE = SasRecConfig(layers=1, heads=2, width=6, dropout=0.0, add_mean=False)
POOLINGS = {
    "mean": {"pooling": "mean"},
    "attention": {"pooling": "attention"},
    "two blocks": {"pooling": SEQUENCE.model_copy(update={"layers": 2})},
}
DROPPED = {"pooling": SEQUENCE.model_copy(update={"dropout": 0.5})}
EVERY = {
    "no layers": {"widths": None, "item_bias": True},
    "nobody": BARE,
    "attention": {"pooling": "attention", "user_id": False},
    "sequence": {**BARE, **POOLINGS["two blocks"]},
    "dropout": {"dropout": 0.3, "widths": (6, 6), **DROPPED},
    "temperature": {"learn_temperature": True, "similarity": "dot"},
}


def build(features=(), optimizer=None, scale=0.5, **options):
    """Returns a model whose weights are random, those that start at 0 too."""
    config = TwoTowerConfig(dim=DIM, feature_dim=3, history=HISTORY, **options)
    spec = ModelSpec(config=config, user_rows=USERS, item_rows=ITEMS, features=features)
    model = TwoTower(spec, TwoTower.make_tables(spec, optimizer), seed=7)
    model.build()
    for number, variable in enumerate(model.weights):
        if "steps" not in variable.path and "temperature" not in variable.path:
            variable.assign(random_values(variable, number, scale))
    return model


def random_values(variable, seed, scale=0.5):
    """Returns random numbers for a variable; rows of items where it holds rows."""
    rng = np.random.default_rng(seed)
    if variable.dtype == "int32":
        return rng.integers(1, ITEMS, variable.shape).astype(np.int32)
    return rng.normal(0, scale, variable.shape).astype(np.float32)


def weights(model):
    tables = model.embedding.get_embedding_tables()
    dense = {
        v.path.removeprefix("two_tower/"): np.asarray(v.value, np.float64)
        for v in model.trainable_variables
    }
    return {**dense, **{name: np.asarray(rows, np.float64) for name, rows in tables.items()}}


def histories(*rows):
    padded = [[*row, *[0] * (HISTORY - len(row))] for row in rows]
    return np.array(padded, np.int32)


_PROGRAMS = weakref.WeakKeyDictionary()


def run(model, name, *args, **kwargs):
    """Calls a method of the model as one program, with what it does to variables."""
    programs = _PROGRAMS.setdefault(model, {})
    key = (name, *kwargs.items())
    if key not in programs:

        @jax.jit
        def compiled(values, args):
            state = list(zip(model.variables, values, strict=True))
            with keras.StatelessScope(state) as scope:
                out = getattr(model, name)(*args, **kwargs)
            return out, [scope.get_current_value(variable) for variable in model.variables]

        programs[key] = compiled
    out, values = programs[key]([variable.value for variable in model.variables], args)
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)
    return jax.tree.map(np.asarray, out)


def queries(model, history, user_row=None):
    n = len(history)
    rows = np.zeros(n, np.int32) if user_row is None else np.asarray(user_row, np.int32)
    return run(model, "embed_query", {"user_row": rows, "history": history})


def in_training(model, x):
    return run(model, "call", x, training=True)["query"]


def batch(n=8, m=12, seed=0):
    rng = np.random.default_rng(seed)
    item_row = rng.integers(1, ITEMS, m).astype(np.int32)
    history = rng.integers(1, ITEMS, (n, HISTORY)) * (rng.random((n, HISTORY)) < 0.6)
    history[:2] = 0
    return {
        "user_row": rng.integers(0, USERS, n).astype(np.int32),
        "history": history.astype(np.int32),
        "id_row": item_row,
        "item_row": item_row,
        "log_q": rng.normal(size=m).astype(np.float32),
    }


def trained(model, batches, optimizer="sgd", rate=0.1):
    """Returns the logs of each step."""
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
    model.compile(optimizer=kinds[optimizer](rate), jit_compile=True)
    return [model.train_on_batch(x, return_dict=True) for x in batches]
