"""A term of a plugin: in its own file, enabled by `model.terms`."""

import numpy as np
import pydantic
import pytest
from keras import ops
from tower_models import ITEMS, batch, build, run, weights
from training_runs import on_devices

import recsys
from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import TrainStage, TwoTowerConfig
from recsys.models.inputs import FeatureSpec
from recsys.models.terms import TermTable
from recsys.tasks.model_folder import load_model, save_model


@recsys.register_term("popular_and_loyal")
class PopularAndLoyal(recsys.Term):
    """Adds the scaled log count of an item, and the product of a number of user and item."""

    class Config(recsys.TermConfig):
        shift: float = 0.0

        @property
        def columns(self):
            return 2

    @property
    def tables(self):
        return {"loyalty": TermTable("users", 1, "ones"), "loyal": TermTable("items", 1)}

    @property
    def lookups(self):
        return {name: (name, (None,)) for name in self.tables}

    def ids(self, inputs):
        read = {"loyalty": "user_row", "loyal": "id_row"}
        return {name: (inputs[x], None) for name, x in read.items() if x in inputs}

    def build(self, input_shape=None):
        shape = (self.spec.item_rows,)
        self.log = self.add_weight(name="log", shape=shape, trainable=False, initializer="zeros")
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def adapt(self, events, inputs):
        self.log.assign(np.log1p(events.item_counts(self.spec.item_rows)))

    @property
    def adapted(self):
        return [self.log]

    def item_row(self, row, read):
        return row + self.options.shift

    def of_query(self, read, vectors):
        return ops.concatenate([ops.ones_like(read["loyalty"]), read["loyalty"]], axis=-1)

    def of_candidate(self, read, vectors):
        log = ops.take(self.log, read["id_row"])[:, None]
        return ops.concatenate([self.scale * log, read["loyal"]], axis=-1)


def test_ease_adds_the_weights_with_the_history_but_not_in_training():
    options = {"widths": None, "similarity": "dot", "pooling": "mean"}
    model, x = build(**options, terms=({"type": "ease", "rank": 3},)), batch()
    x["id_row"] = np.arange(ITEMS, dtype=np.int32)
    rng, term = np.random.default_rng(0), model.terms["ease"]
    vectors = rng.uniform(-0.5, 0.5, (ITEMS, 3)).astype(np.float32)
    vectors[0] = 0
    term.vectors.assign(vectors)
    trained = run(model, "call", x, training=True)
    plain = trained["query"] @ trained["candidate"].T
    term.weight.assign(2.0)
    query, item = (run(model, f"embed_{side}", x) for side in ("query", "candidate"))
    weights = vectors @ (vectors / (1 - np.square(vectors).sum(axis=1, keepdims=True))).T
    added = np.stack([weights[items].sum(axis=0) for items in x["history"]])
    np.testing.assert_allclose(query @ item.T, plain + 2 * added, atol=1e-5)
    assert query.shape[1] == trained["query"].shape[1] + 3 == model.config.vector_dim
    np.testing.assert_array_equal(run(model, "call", x, training=True)["query"], trained["query"])


def test_an_item_without_events_has_the_mean_of_its_tokens_in_ease():
    feature = FeatureSpec(name="genres", rows=6, width=4, dim=3)
    model = build((feature,), widths=(), terms=({"type": "ease", "rank": 3},))
    rng, x, term = np.random.default_rng(0), batch(), model.terms["ease"]
    means, weights = term.of_tokens["genres"]
    values = rng.uniform(0, 1, means.shape), rng.uniform(0, 1, weights.shape)
    for variable, value in zip((means, weights), values, strict=True):
        value[0] = 0
        variable.assign(value)
    x["id_row"] = np.zeros_like(x["id_row"])
    tokens = x["genres"] = rng.integers(0, 6, (len(x["id_row"]), 4)).astype(np.int32)
    found = run(model, "embed_candidate", x)[:, -3:]
    share = values[1][tokens]
    total = (share[:, :, None] * values[0][tokens]).sum(axis=1)
    has_tokens = share.sum(axis=1) > 0
    assert has_tokens.any()
    expected = total[has_tokens] / share.sum(axis=1)[has_tokens, None]
    np.testing.assert_allclose(found[has_tokens], expected, rtol=1e-3)


CHOSEN = {"type": "popular_and_loyal", "shift": 0.5}


def test_the_score_is_the_similarity_and_its_terms():
    options = {"widths": None, "similarity": "dot", "pooling": "none"}
    model, x = build(**options, item_bias=True, terms=(PopularAndLoyal.Config(shift=0.5),)), batch()
    x["id_row"] = np.arange(ITEMS, dtype=np.int32)
    w, log = weights(model), np.asarray(model.terms["popular_and_loyal"].log)
    query, item = (run(model, f"embed_{side}", x) for side in ("query", "candidate"))
    assert query.shape[1] == item.shape[1] == model.config.vector_dim == 8 + 1 + 2
    user = x["user_row"]
    expected = w["users"][user] @ (w["items"] + 0.5).T + w["item_bias"][:, 0]
    expected += w["popular_and_loyal/scale"] * log + w["loyalty"][user] * w["loyal"][:, 0]
    np.testing.assert_allclose(query @ item.T, expected, atol=1e-5)
    in_training = run(model, "call", x, training=True)
    np.testing.assert_allclose(in_training["candidate"], item, atol=1e-6)


def test_a_config_lists_it():
    config = TwoTowerConfig.model_validate_json('{"terms": [{"type": "popular_and_loyal"}]}')
    assert config.terms == (PopularAndLoyal.Config(),)
    assert config.architecture()["terms"] == [{"type": "popular_and_loyal", "shift": 0.0}]
    assert TwoTowerConfig.model_validate_json(config.model_dump_json()) == config


def test_a_term_is_listed_once():
    with pytest.raises(pydantic.ValidationError, match="listed once"):
        TwoTowerConfig.model_validate_json('{"item_bias": true, "terms": ["item_bias"]}')


def test_it_is_trained_saved_and_loaded(tmp_path):
    draw = np.random.default_rng(0)
    lists = [draw.choice(30, 6, replace=False).tolist() for _ in range(40)]
    write_data_folder(Csr.of_lists(lists, 30), tmp_path / "data")
    data = recsys.open_data(tmp_path / "data")
    model = {"dim": 8, "table_placement": "row", "terms": [CHOSEN]}
    stage = TrainStage.model_validate({"model": model, "train": {"epochs": 1, "batch_size": 32}})
    model = recsys.TwoTower.from_config(stage, data)
    with on_devices(2):
        result = recsys.Trainer(stage.train, tmp_path / "run", verbose=0).fit(model, data)
        save_model(tmp_path / "model", model, result.stage, data.folder, result.inputs)
        rows = np.arange(31, dtype=np.int32)
        found = run(model, "embed_candidate", {"id_row": rows})
    counts = result.events.item_counts(31)
    np.testing.assert_allclose(model.terms["popular_and_loyal"].log, np.log1p(counts), rtol=1e-6)
    loyal = model.embedding.get_embedding_tables()["loyal"]
    assert (np.asarray(loyal)[1:] != 0).any()
    loaded = load_model(tmp_path / "model")
    np.testing.assert_allclose(
        run(loaded.model, "embed_candidate", {"id_row": rows}), found, atol=1e-6
    )
