"""Rows follow ids: what a model takes over from an earlier one, against numpy."""

import dataclasses
import re
import shutil

import keras
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_parts import divide_all
from warm_worlds import (
    DAY,
    Folder,
    World,
    all_in_order,
    compiled,
    save_base,
    stage,
    store_of,
    table_of,
)

from recsys.data.catalogue import FeatureBags
from recsys.data.config import read_event_feature
from recsys.data.event_features import FOLDER, LearnedFeature, save_event_features
from recsys.data.store import InteractionStore
from recsys.embedding import activate, table_layout
from recsys.errors import RecsysError, UsageError
from recsys.models import TwoTower
from recsys.models.inference import embed_catalogue, embed_queries
from recsys.tasks.model_folder import load_model
from recsys.tasks.retrieval.training.epoch_work import _since
from recsys.tasks.retrieval.training.side import RetrievalTraining
from recsys.tasks.training_side import training_events
from recsys.training.optimization import tower_optimizer
from recsys.training.row_sources import sources_of_ids
from recsys.training.state_transfer import transfer_state
from recsys.training.warm_start import (
    EarlierModel,
    batch_settings,
    choose,
    continued_stage,
    damage_in_share,
)

OLD = World(
    users=["u1", "u2", "u3", "u4"],
    items=["i1", "i2", "i3", "i4", "i5"],
    genres={"i1": "a", "i2": "ab", "i3": "b", "i4": "c", "i5": "a"},
    ages={"u1": 10, "u2": 20, "u3": 30, "u4": 40},
    counts={"i5": 0},
)
# i3 went and i6 has its row; i7 and i8 are new; u5 is new.
NEW = World(
    users=["u1", "u2", "u3", "u4", "u5"],
    items=["i1", "i2", "i6", "i4", "i5", "i7", "i8"],
    genres={"i1": "a", "i2": "ab", "i4": "c", "i5": "a", "i6": "ab", "i7": "c", "i8": ()},
    ages={"u1": 10, "u2": 20, "u3": 30, "u4": 40, "u5": 12},
    counts={"i5": 0},
    generation=np.array([0, 0, 1, 0, 0, 0, 0]),
)


def choose_by(base, asked, store, inputs):
    return choose(base, asked, store, RetrievalTraining(asked, store, inputs))


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    data = OLD.save(folder / "data")
    return save_base(folder / "model", data, OLD, stage())


def carried(base, world, asked=None):
    """The state of a model of `world` before its first step, and the report."""
    asked = asked or stage()
    opened = EarlierModel.open(base)
    model = compiled(world.inputs, asked, opened.state.updates)
    cold = all_in_order(model)
    report = transfer_state(opened, model, world.inputs, asked)
    return model, report, cold


def neighbours_mean(x, of, vectors, tokens):
    """The docstring's first formula, item by item, in float64."""
    n = len(of)
    having = {t: sum(t in tokens[y] for y in of) for t in tokens[x]}
    weight = {t: np.log(1 + n / k) * k / (k + 10) for t, k in having.items() if k}
    share = [sum(weight[t] / having[t] for t in tokens[y] if t in weight) for y in of]
    if not sum(share):
        return np.mean([vectors[y] for y in of], axis=0)
    return sum(s * vectors[y] for s, y in zip(share, of, strict=True)) / sum(share)


def test_surviving_rows_keep_vector_and_slots_and_others_begin_anew(old):
    model, report, cold = carried(old, NEW)
    before, slot = Folder(old).table("items").astype(np.float64), Folder(old).slot("items")
    now, slots = table_of(model, "items")
    for row in (0, 1, 2, 4, 5):
        assert now[row].tobytes() == before[row].astype(np.float32).tobytes()
        assert slots[row].tobytes() == slot[row].tobytes()
    # i5 was never trained, so nothing is made of it.
    vectors = {"i1": before[1], "i2": before[2], "i4": before[4]}
    tokens = {"i1": "a", "i2": "ab", "i4": "c", "i6": "ab", "i7": "c", "i8": ""}
    for row, id_ in ((3, "i6"), (6, "i7"), (7, "i8")):
        expected = neighbours_mean(id_, list(vectors), vectors, tokens)
        assert now[row] == pytest.approx(expected, abs=1e-6)
        assert (slots[row] == np.float32(0.1)).all()
        assert (cold["two_tower/embedding/items/accumulator"][row] == slots[row]).all()
    assert report["items"] == {
        "rows": 8, "kept": 4, "new": 2, "reset": 1, "dropped": 1, "moved": 0, "neighbours": 2
    }  # fmt: skip
    users, _ = table_of(model, "users")
    assert users[1:5].tobytes() == Folder(old).table("users")[1:5].tobytes()
    # u5 is twelve, in the bucket of u1 and u2.
    assert users[5] == pytest.approx(Folder(old).table("users")[1:3].mean(axis=0), abs=1e-6)


def test_a_model_in_parts_is_taken_over_as_one_in_whole_files_is(old, tmp_path):
    parts = tmp_path / "parts"
    shutil.copytree(old, parts)
    numbers = divide_all(parts)
    models = [carried(folder, NEW)[0] for folder in (old, parts)]
    for a, b in zip(models[0].variables, models[1].variables, strict=True):
        assert np.asarray(a.value).tobytes() == np.asarray(b.value).tobytes(), a.path
    flipped = f"weights/{numbers[0]}/shard-1-of-3.npy"
    flip(flipped)(parts)
    assert str(damage_in_share(parts)).startswith(f"{flipped}: ")


class Told(World):
    """A world whose events have a device and an hour."""

    def __init__(self, world, *devices, **options):
        vars(self).update(vars(world))
        device = {"name": "device", "column": "device", "kind": "category", **options}
        hour = {"name": "hour", "column": "timestamp", "kind": "hour"}
        learned = pa.table({"token": devices}), pa.table({})
        features = map(read_event_feature, (device, hour))
        self.event_features = tuple(map(LearnedFeature, features, learned))

    @property
    def inputs(self):
        return dataclasses.replace(super().inputs, event_features=self.event_features)

    def save(self, folder, **options):
        save_event_features(folder / FOLDER, self.event_features)
        return super().save(folder, **options)


def test_tokens_of_events_keep_their_vectors_and_new_ones_grow_the_table(tmp_path):
    asked, then = stage({"pooling": "attention"}), Told(OLD, "tv", "phone")
    data = then.save(tmp_path / "data")
    base = save_base(tmp_path / "model", data, then, asked)
    model, report, _ = carried(base, Told(NEW, "phone", "tv", "watch"), asked)
    before = Folder(base)
    for of_table, kept in zip(
        table_of(model, "device"), (before.table("device"), before.slot("device")), strict=True
    ):
        np.testing.assert_array_equal(of_table[:3], kept[[0, 2, 1]])
    assert report["device"] == {
        "rows": 4, "kept": 2, "new": 1, "reset": 0, "dropped": 0, "moved": 2, "neighbours": 0
    }  # fmt: skip
    np.testing.assert_array_equal(table_of(model, "hour")[0], before.table("hour"))
    (kernel,) = [v for v in model.weights if v.path.endswith("attributes/kernel")]
    assert np.asarray(kernel.value).tobytes() == before.everything()[kernel.path].tobytes()
    for other in (NEW, Told(NEW, "tv", context=True), Told(NEW, "tv", hash_buckets=7)):
        with pytest.raises(RecsysError, match=r"R390.*features of events: device \(category"):
            choose_by(base, asked, store_of(data), other.inputs)


def test_neighbours_of_items_are_no_earlier_model_s(tmp_path):
    asked = stage({"item_neighbours": 2})
    data = OLD.save(tmp_path / "data")
    base = save_base(tmp_path / "model", data, OLD, asked)
    model, report, _ = carried(base, NEW, asked)
    assert report["items"]["kept"] == 4
    # Rows are others now: the trainer counts anew, by `adapt`.
    assert tuple(model.terms["item_neighbours"].neighbours.shape) == (8, 2)
    assert not np.asarray(model.terms["item_neighbours"].neighbours.value).any()


def test_towers_moments_and_dropout_go_on_and_steps_are_counted_on(old):
    model, _, _ = carried(old, NEW)
    found, before = all_in_order(model), Folder(old).everything()
    dense = [path for path in before if "/embedding/" not in path]
    assert sum("momentum" in path or "velocity" in path for path in dense) > 4
    assert any("dropout" in path for path in dense)
    for path in dense:
        assert found[path].tobytes() == before[path].tobytes(), path
    assert int(model.optimizer._iterations.value) == 30
    assert all(int(found[p]) == 30 for p in found if p.endswith("/steps"))


@pytest.mark.parametrize("kind", ["mean", "initial"])
def test_new_rows_start_from_the_mean_or_as_in_a_first_training(old, kind):
    model, report, cold = carried(old, NEW, stage(warm={"new_rows": kind}))
    now, _ = table_of(model, "items")
    mean = Folder(old).table("items")[[1, 2, 4]].astype(np.float64).mean(axis=0)
    begun = cold["two_tower/embedding/items/embeddings"]
    for row in (3, 6, 7):
        assert now[row] == pytest.approx(mean if kind == "mean" else begun[row], abs=1e-6)
    assert report["items"]["neighbours"] == 0


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        ("row_wise_adagrad", "bfloat16"),
        ("lazy_adam", "float32"),
    ],
)
def test_every_table_optimizer_and_type_comes_over_bit_for_bit(tmp_path, optimizer, dtype):
    asked = stage({"table_dtype": dtype, "item_bias": True}, table_optimizer=optimizer)
    data = OLD.save(tmp_path / "data")
    base = save_base(tmp_path / "model", data, OLD, asked)
    model, _, _ = carried(base, OLD, asked)
    before = Folder(base).everything()
    for path, array in all_in_order(model).items():
        if path in before:
            assert array.tobytes() == before[path].tobytes(), path


def test_eight_devices_take_over_what_one_does(old):
    asked = stage({"table_placement": "row", "dim": 8, "feature_dim": 8})
    data = old.parent / "data"
    base = save_base(old.parent / "eight", data, OLD, asked)
    one = all_in_order(carried(base, NEW, asked)[0])
    spec = compiled(NEW.inputs, asked).spec
    activate(table_layout(list(TwoTower.make_tables(spec, "adagrad").values())))
    model, _, _ = carried(base, NEW, asked)
    items = next(t for t in model.embedding.tables if t.name == "items")
    shards = [s.data.shape for s in items.embeddings.value.addressable_shards]
    assert shards == [(3840 // 8, 8)] * 8
    eight = all_in_order(model)
    assert one.keys() == eight.keys()
    for path, array in one.items():
        assert array.tobytes() == eight[path].tobytes(), path


def test_a_table_of_several_chunks_is_the_same(old, monkeypatch):
    whole = all_in_order(carried(old, NEW)[0])
    for module in ("embedding.table._CHUNK_BYTES", "training.row_sources._CHUNK_NUMBERS"):
        monkeypatch.setattr(f"recsys.{module}", 3 * 4 * 4)
    for path, array in all_in_order(carried(old, NEW)[0]).items():
        assert array == pytest.approx(whole[path], abs=1e-6), path


class Headed(TwoTower):
    """A model with a head over all items, as large as the data."""

    weights_by_row = {"head/kernel": ("items", 1), "head/bias": ("items", 0)}  # noqa: RUF012

    def __init__(self, spec, *args, **kwargs):
        super().__init__(spec, *args, **kwargs)
        self.head = keras.layers.Dense(spec.item_rows)

    def build_layers(self):
        super().build_layers()
        self.head.build((None, self.config.dim))


def test_a_head_over_the_items_goes_on_by_id(tmp_path, monkeypatch):
    monkeypatch.setattr("warm_worlds.TwoTower", Headed)
    data = OLD.save(tmp_path / "data")
    base = save_base(tmp_path / "model", data, OLD, stage())
    model, _, cold = carried(base, NEW)
    before, now = Folder(base).everything(), all_in_order(model)
    for name, axis in (("head/kernel", 1), ("head/bias", 0)):
        paths = [f"two_tower/{name}"]
        paths += [p for p in now if p.startswith(f"towers/two_tower_{name.replace('/', '_')}_")]
        assert len(paths) == 3  # Adam's moments.
        for path in paths:
            then, found, new = (np.moveaxis(x[path], axis, 0) for x in (before, now, cold))
            # i3 went and i6 has its row; i7 and i8 are behind.
            assert found[[0, 1, 2, 4, 5]].tobytes() == then[[0, 1, 2, 4, 5]].tobytes()
            assert found[[3, 6, 7]].tobytes() == new[[3, 6, 7]].tobytes()
    monkeypatch.setattr(Headed, "weights_by_row", {})
    with pytest.raises(UsageError, match=r"R390.*head/kernel: \(4, 6\) → \(4, 8\)"):
        carried(base, NEW)


IDS = st.lists(st.sampled_from([f"x{n}" for n in range(12)]), unique=True, max_size=12)


@given(IDS, IDS, st.integers(0, 2), st.data())
def test_rows_follow_ids_whatever_the_vocabularies(before, now, shared, data):
    """Ids in any order, with free rows between; and a generation that went up."""
    free = [None, None]
    before, now = (data.draw(st.permutations([*ids, *free])) for ids in (before, now))
    config = {"hash_buckets": shared}
    old = World(users=before, items=["i"], **config).users
    raised = np.array(data.draw(st.lists(st.booleans(), min_size=len(now), max_size=len(now))), int)
    new = World(users=now, items=["i"], **config).users
    new.generation = raised.astype(np.int32)
    found = sources_of_ids(old, new)
    first = 1 + shared
    for row, id_ in enumerate(new.ids_of_rows.to_pylist()):
        place = before.index(id_) if id_ in before and id_ is not None else None
        if row < first:
            expected = row
        elif place is None or (place == row - first and raised[place]):
            expected = -1
        else:
            expected = place + first
        assert found.source[row] == expected
        assert found.is_new[row] == (expected < 0 and id_ is not None)
    n_ids = sum(id_ is not None for id_ in now)
    assert sum(found.counts[name] for name in ("kept", "new", "reset")) == n_ids
    assert found.counts["kept"] + found.counts["dropped"] == sum(id_ is not None for id_ in before)


def test_a_vocabulary_that_was_built_anew_gives_each_id_its_vector(old):
    world = World(
        users=["u3", "u9", "u1", "u4"],
        items=["i4", "i1", "i5", "i2"],
        genres={"i1": "a", "i2": "ab", "i4": "c", "i5": "a"},
        known_genres=("c", "z", "a", "b"),
    )
    model, report, _ = carried(old, world)
    before = Folder(old)
    for name, rows in (("items", [0, 4, 1, 5, 2]), ("genres", [0, 3, None, 1, 2])):
        for array, then in zip(
            table_of(model, name), (before.table(name), before.slot(name)), strict=True
        ):
            for row, source in enumerate(rows):
                assert source is None or (array[row] == then[source]).all(), (name, row)
    assert report["items"]["kept"] == report["items"]["moved"] == 4
    assert report["genres"] | {"neighbours": 0} == report["genres"]
    assert (report["genres"]["kept"], report["genres"]["new"] + report["genres"]["reset"]) == (3, 1)
    mean = before.table("genres")[1:].mean(axis=0)
    assert table_of(model, "genres")[0][2] == pytest.approx(mean, abs=1e-6)


def test_buckets_follow_who_is_in_them(tmp_path):
    """Young people joined: who was in bucket 1 is in bucket 2 now, and bucket 1 is new."""
    old_ages = {f"u{n}": n for n in range(20)}
    before = World(users=list(old_ages), items=["i1", "i2"], ages=old_ages, buckets=2)
    young = {f"y{n}": -n - 1 for n in range(20)}
    ages = {**old_ages, **young}
    now = World(users=list(ages), items=["i1", "i2"], ages=ages, buckets=4)
    data = before.save(tmp_path / "data")
    base = save_base(tmp_path / "model", data, before, stage())
    model, report, _ = carried(base, now)
    found, slots = table_of(model, "age")
    then = Folder(base).table("age")
    assert [found[n].tolist() for n in (3, 4)] == [then[n].tolist() for n in (1, 2)]
    assert found[1] == pytest.approx(then[1:].mean(axis=0), abs=1e-6)
    assert (slots[1] == np.float32(0.1)).all()
    assert report["age"]["kept"] == report["age"]["moved"] == 2


def test_before_the_first_step_survivors_score_as_they_did(old, tmp_path):
    model, _, _ = carried(old, NEW)
    base = load_model(old)
    rows = np.array([1, 2, 3, 4], np.int32)
    history = np.array([[1, 2, 0], [4, 0, 0], [0, 0, 0], [2, 4, 1]], np.int32)
    before = embed_queries(base.model, rows, history, base.inputs)
    assert embed_queries(model, rows, history, NEW.inputs).tobytes() == before.tobytes()
    items = [1, 2, 4, 5]
    now = embed_catalogue(model, NEW.inputs)[items]
    assert now.tobytes() == embed_catalogue(base.model, base.inputs)[items].tobytes()


def test_averaged_towers_go_on_from_their_averages(tmp_path):
    asked = stage(ema=0.9, accumulate=4)
    data = OLD.save(tmp_path / "data")
    base = save_base(tmp_path / "model", data, OLD, asked)
    model, _, _ = carried(base, OLD, asked)
    weights = Folder(base).everything()
    averages = model.optimizer._model_variables_moving_average
    for average, variable in zip(averages, model.trainable_variables, strict=True):
        assert np.asarray(average.value).tobytes() == weights[variable.path].tobytes()
        # One array of two variables would be donated to a step twice, which ends the process.
        assert average.value is not variable.value
    # Keras counts steps, of which four are an update.
    assert int(model.optimizer._iterations.value) == 30 * 4


# --- how long it trains, and at what rates


def test_a_run_that_goes_on_makes_its_own_passes_and_draws_otherwise(old):
    asked = stage(seed=5)
    base = EarlierModel.open(old)
    warm = continued_stage(asked, base)
    assert warm.train.epochs == 1
    assert warm.model_copy(update={"train": asked.train}) == asked
    assert batch_settings(warm.train, base).seed == 5 + 30
    assert continued_stage(asked, None) is asked
    assert batch_settings(asked.train, None) is asked.train


def test_a_schedule_restarts_at_the_step_that_is_counted_on_from():
    cold, warm = _schedule(0), _schedule(30)
    assert float(cold(0)) == pytest.approx(0.0005)
    # An update is two steps: the base's 30 are 60 of Keras' steps.
    for step in range(100):
        assert float(warm(60 + step)) == float(cold(step))


def _schedule(start):
    asked = stage(schedule={"kind": "cosine", "warmup_steps": 4}, accumulate=2)
    return tower_optimizer(asked.train, 50, start)._learning_rate


# --- what is refused, and what isn't used


@pytest.fixture
def today(tmp_path):
    return NEW.save(tmp_path / "data")


def chosen(base, data, asked=None, world=NEW):
    return choose_by(base, asked or stage(), store_of(data), world.inputs)


@pytest.mark.parametrize(
    ("asked", "world", "words"),
    [
        (stage({"dim": 8}), NEW, r"model\.dim: 4 → 8"),
        (stage({"widths": [5, 5], "history": 9}), NEW, r"model\.history: 3 → 9; .*model\.widths"),
        (stage({"pooling": "attention"}), NEW, r"model\.pooling: mean → attention"),
        (stage(table_optimizer="sgd"), NEW, r"train\.table_optimizer: adagrad → sgd"),
        (stage(tower_optimizer="lion"), NEW, r"train\.tower_optimizer: adam → lion"),
        (stage(), World(["u1"], ["i1"], hash_buckets=4), r"users\.hash_buckets: 0 → 4"),
    ],
)
def test_another_model_is_refused_with_what_differs_or_begins_cold(old, today, asked, world, words):
    with pytest.raises(RecsysError, match=rf"R390.*{words}.*warm_start\.changed=cold"):
        chosen(old, today, asked, world)
    cold = asked.model_copy(
        update={"warm_start": asked.warm_start.model_copy(update={"changed": "cold"})}
    )
    base, reason = chosen(old, today, cold, world)
    assert base is None
    assert "traits changed" in reason


def test_other_features_are_refused(old, today):
    bags = NEW.catalogue.features[0]
    inputs = dataclasses.replace(
        NEW.inputs,
        catalogue=dataclasses.replace(
            NEW.catalogue, features=(dataclasses.replace(bags, name="style"),)
        ),
    )
    with pytest.raises(RecsysError, match=r"R390.*features of items: genres → style"):
        choose_by(old, stage(), store_of(today), inputs)
    numbers = FeatureBags("genres", 0, np.zeros(bags.bags.shape, np.float32))
    for other, kind in ((dataclasses.replace(bags, tokens=None), "hashed"), (numbers, "numbers")):
        catalogue = dataclasses.replace(NEW.catalogue, features=(other,))
        inputs = dataclasses.replace(NEW.inputs, catalogue=catalogue)
        with pytest.raises(RecsysError, match=rf"R390.*tokens of genres: known → {kind}"):
            choose_by(old, stage(), store_of(today), inputs)


def test_what_changes_training_alone_may_change(old, today):
    asked = stage(
        {"temperature": 0.5, "dropout": 0.3, "id_dropout": 0.0, "table_placement": "auto"},
        batch_size=16,
        table_learning_rate=0.01,
        seed=5,
    )
    assert chosen(old, today, asked)[0].folder == old


def test_a_model_that_has_seen_what_is_evaluated_is_not_used(tmp_path, old):
    data = NEW.save(tmp_path / "data", cut=9 * DAY, days=(1, 9))
    assert chosen(old, data)[0] is not None
    data = NEW.save(tmp_path / "earlier", cut=9 * DAY - 1, days=(1, 8))
    base, reason = chosen(old, data)
    assert base is None
    assert "it has seen the answers" in reason


def test_a_model_that_has_seen_what_validation_asks_is_not_used(tmp_path, old):
    asked = stage(validation={"share": 0.2})
    data = NEW.save(tmp_path / "data", days=(1, 9))
    assert "all that validation holds back" in chosen(old, data, asked)[1]
    newer = NEW.save(tmp_path / "newer", cut=30 * DAY, days=(1, 30))
    assert chosen(old, newer, asked)[0] is not None


@pytest.mark.parametrize("draw", [{"like": "random", "share": 0.3}, {"like": "last", "last": 40}])
def test_of_any_draw_what_is_newer_than_the_base_is_asked(tmp_path, old, draw):
    asked = stage(validation=draw)
    newer = NEW.save(tmp_path / "newer", cut=30 * DAY, days=(1, 30))
    base, reason = chosen(old, newer, asked)
    assert reason is None
    store = InteractionStore.open(newer / "store")
    events, until = training_events(store.train, asked.train), base.state.trained_until
    times = np.asarray(store.train.timestamp)[events.held]
    assert (times < until).any()
    queries = _since(events, until)
    assert queries.held.tolist() == events.held[times >= until].tolist()
    assert queries.draw == draw["like"]


def remove_state(folder):
    shutil.rmtree(folder / "training_state")


def flip(name):
    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove_state, "no training_state"),
        (flip("weights/1.npy"), r"damaged: weights/1\.npy"),
        (flip("training_state/0.npy"), r"damaged: training_state/0\.npy"),
        (flip("training_state/state.json"), r"damaged: training_state/state\.json"),
        (flip("training_state/manifest.json"), "damaged"),
        (lambda folder: (folder / "training_state/manifest.json").unlink(), "another version"),
        (flip("vocabulary/items.parquet"), r"damaged: vocabulary"),
        (lambda folder: (folder / "weights/0.npy").unlink(), r"weights/0\.npy: it can't be read"),
        (lambda folder: (folder / "model.json").unlink(), r"model\.json"),
    ],
)
def test_a_damaged_or_older_model_is_not_used(tmp_path, old, today, damage, words):
    folder = tmp_path / "damaged"
    shutil.copytree(old, folder)
    damage(folder)
    base, reason = chosen(folder, today)
    assert base is None
    assert re.search(words, reason)


def test_a_base_that_is_not_there_is_a_mistake(tmp_path, today):
    with pytest.raises(RecsysError, match="R391"):
        chosen(tmp_path / "nowhere", today)


def test_evaluation_and_export_read_a_model_without_its_state(old, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(old, folder)
    remove_state(folder)
    with_state, without = load_model(old).model, load_model(folder).model
    for a, b in zip(with_state.weights, without.weights, strict=True):
        assert np.asarray(a.value).tobytes() == np.asarray(b.value).tobytes()
