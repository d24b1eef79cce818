"""The towers against numpy, and the model folder there and back."""

import shutil

import numpy as np
import pyarrow as pa
import pytest
from model_parts import PARTS, divide
from tower_models import weights

from benchmarks.stores import save_catalogue, save_features
from recsys.config import TrainStage, TwoTowerConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.embedding import activate, table_layout
from recsys.errors import RecsysError
from recsys.models import ModelInputs, ModelSpec, TwoTower, inference
from recsys.models.inference import embed_catalogue, embed_queries
from recsys.tasks.model_folder import load_model, save_model
from recsys.tasks.retrieval.probe import check_probe, read_probe

DIM, HISTORY = 4, 3


@pytest.fixture
def data(tmp_path):
    """Six users and six items, of which the last was never seen in training."""
    users = Vocabulary(pa.array([f"u{n}" for n in range(6)]), np.arange(5, -1, -1))
    items = Vocabulary(pa.array([f"i{n}" for n in range(6)]), np.array([5, 4, 3, 2, 1, 0]))
    bags = np.array([[0, 0], [1, 2], [1, 0], [2, 0], [3, 1], [0, 0], [3, 2]], np.int32)
    names = items.names_of_rows()
    catalogue = Catalogue(names, names, (FeatureBags("genres", 4, bags),))
    plans = np.array([[0], [1], [2], [0], [1], [2], [2]], np.int32)
    user_features = (FeatureBags("plan", 3, plans),)
    save_features(user_features, tmp_path / "user_features")
    (tmp_path / "vocabulary").mkdir()
    users.save(tmp_path / "vocabulary" / "users.parquet")
    items.save(tmp_path / "vocabulary" / "items.parquet")
    save_catalogue(catalogue, tmp_path / "catalogue")
    return tmp_path, ModelInputs(users, items, catalogue, user_features)


STAGE = TrainStage(
    model=TwoTowerConfig(
        dim=DIM, feature_dim=2, history=HISTORY, widths=(5,), table_placement="row"
    )
)


def build(data):
    known = data[1]
    spec = ModelSpec.for_data(STAGE.model, known.users.n_rows, known.catalogue, known.user_features)
    model = TwoTower(spec, seed=7)
    model.build()
    for number, variable in enumerate(model.weights):
        rng = np.random.default_rng(number)
        variable.assign(rng.normal(size=variable.shape).astype(np.float32))
    return model


def tower(w, name, anchor, inputs):
    hidden = inputs @ w[f"{name}/hidden_0/kernel"] + w[f"{name}/hidden_0/bias"]
    x = anchor + (hidden / (1 + np.exp(-hidden))) @ w[f"{name}/out/kernel"]
    return x / np.linalg.norm(x)


@pytest.mark.parametrize(
    ("user_row", "token"),
    [(3, None), (6, 2), (0, None)],
    ids=["without a feature", "without training positives", "unknown"],
)
def test_a_user_reads_the_own_row_if_trained_and_the_own_features_in_any_case(
    data, user_row, token
):
    model = build(data)
    w = weights(model)
    user = w["users"][user_row if user_row == 3 else 0]
    plan = np.zeros(2) if token is None else w["plan"][token]
    expected = tower(w, "query_tower", user, np.concatenate([np.zeros(DIM), user, plan]))
    nothing = np.zeros((1, HISTORY), np.int32)
    found = embed_queries(model, np.array([user_row], np.int32), nothing, data[1])
    assert np.allclose(found[0], expected, atol=1e-6)


def test_an_item_without_training_positives_reads_row_zero_of_the_table(data):
    model = build(data)
    w = weights(model)
    genres = w["genres"][[3, 2]].mean(axis=0)
    own = w["items"][0]
    expected = tower(w, "candidate_tower", own, np.concatenate([own, genres]))
    assert np.allclose(embed_catalogue(model, data[1])[6], expected, atol=1e-6)


@pytest.mark.parametrize("share", [None, np.array([0.5, 2.0, 0.0], np.float32)])
def test_the_loss_masks_by_item_and_corrects_and_weighs_as_the_config_says(data, share):
    model = build(data)
    # Short vectors: every candidate has its part in the sum.
    query, candidate = np.random.default_rng(3).normal(0, 0.2, (2, 3, DIM)).astype(np.float32)
    # Examples 0 and 2 are of one item; the id of the second is dropped.
    x = {
        "item_row": np.array([1, 2, 1], np.int32),
        "id_row": np.array([1, 2, 0], np.int32),
        "log_q": np.log(np.array([0.5, 0.1, 0.5], np.float32)),
    }
    weight = np.exp(query @ candidate.T / 0.15 - x["log_q"]) * [[1, 1, 0], [1, 1, 0], [0, 1, 1]]
    losses = -np.log(np.diag(weight) / weight.sum(axis=1))
    expected = losses.mean() if share is None else (0.5 * losses[0] + 2 * losses[1]) / 2.5
    if share is not None:
        x["weight"] = share
    found = model.compute_loss(x, y_pred={"query": query, "candidate": candidate})
    assert STAGE.model.temperature == 0.15
    assert float(found) == pytest.approx(expected, rel=1e-4)


def loss_of(data, loss, x):
    """Returns the loss of three queries, and their similarities with four candidates."""
    known = data[1]
    spec = ModelSpec.for_data(STAGE.model, known.users.n_rows, known.catalogue, known.user_features)
    model = TwoTower(spec, loss=loss)
    random = np.random.default_rng(3)
    query, candidate = (random.normal(0, 0.2, (n, DIM)).astype(np.float32) for n in (3, 4))
    found = model.compute_loss(x, y_pred={"query": query, "candidate": candidate})
    return float(found), query.astype(np.float64) @ candidate.T / 0.15


X = {"item_row": np.array([1, 2, 3, 4], np.int32), "log_q": np.zeros(4, np.float32)}


def test_the_full_softmax_is_over_all_candidates(data):
    found, logits = loss_of(data, "full_softmax", X)
    expected = (np.log(np.exp(logits).sum(axis=1)) - np.diag(logits)).mean()
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", ["sampled_softmax", "bpr"])
def test_what_a_user_is_known_to_like_is_no_negative(data, loss):
    found, logits = loss_of(data, loss, {**X, "known": np.array([[4], [0], [4]], np.int32)})
    if loss == "bpr":
        expected = np.log1p(np.exp(logits[1, 3] - logits[1, 1]))
    else:
        powers = np.exp(logits) * [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]
        expected = (np.log(powers.sum(axis=1)) - np.diag(logits)).mean()
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param((1024, 128), marks=pytest.mark.thorough, id="one block"),
        pytest.param((2, 1), id="blocks"),
    ],
)
def test_a_model_of_one_device_gives_the_same_numbers_on_eight(data, tmp_path, monkeypatch, block):
    monkeypatch.setattr(inference, "_BLOCK", block[0])
    monkeypatch.setattr(inference, "_UNIT", block[1])
    one = build(data)
    folder = tmp_path / "model"
    save_model(folder, one, STAGE, data[0])
    expected = embed_catalogue(one, data[1])
    queries = np.arange(17, dtype=np.int32) % 7, np.arange(51, dtype=np.int32).reshape(17, 3) % 7
    of_one = embed_queries(one, *queries, data[1])
    activate(table_layout(list(TwoTower.make_tables(one.spec).values())))
    eight = load_model(folder)
    _, items, *_ = eight.model.embedding.tables
    assert items.embeddings.value.addressable_shards[0].data.shape == (3840 // 8, DIM)
    found = embed_catalogue(eight.model, eight.inputs)
    assert np.allclose(found, expected, atol=1e-6)
    asked = embed_queries(eight.model, *queries, eight.inputs)
    assert np.allclose(asked, of_one, atol=1e-6)
    assert eight.stage == STAGE

    # And back: what eight devices write has no padding rows.
    again = tmp_path / "again"
    save_model(again, eight.model, STAGE, data[0])
    for file in (folder / "weights").iterdir():
        assert np.array_equal(np.load(file), np.load(again / "weights" / file.name))


@pytest.fixture
def folder(data, tmp_path):
    folder = tmp_path / "model"
    save_model(folder, build(data), STAGE, data[0])
    return folder


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def replace(path):
    np.save(path, np.zeros((2, 2), np.float32))


def plant(path):
    text = path.read_text()
    path.write_text(text.replace('"plugins": []', '"plugins": ["antigravity"]'))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("weights/0.npy", truncate, r"R310.*model"),
        ("weights/0.npy", flip, r"R310.*model"),
        ("weights/1.npy", replace, r"R310.*model"),
        ("weights/2.npy", lambda path: path.unlink(), r"R310.*model"),
        ("model.json", truncate, r"R310.*model"),
        ("model.json", plant, r"R310.*model\.json.*sha256"),
        ("vocabulary/users.parquet", truncate, r"R221.*model/vocabulary/users\.parquet"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(folder, file, damage, message):
    damage(folder / file)
    with pytest.raises(RecsysError, match=message):
        load_model(folder)


def test_tables_in_parts_give_the_same_model(data, tmp_path):
    whole = build(data)
    folder = tmp_path / "model"
    (folder / "weights" / "0").mkdir(parents=True)  # Of an earlier writer.
    save_model(folder, whole, STAGE, data[0])
    assert not (folder / "weights" / "0").exists()
    assert len(divide(folder)) > 3
    before, after = weights(whole), weights(load_model(folder).model)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert np.array_equal(array, after[name]), name


@pytest.mark.parametrize("damage", [truncate, flip, replace, lambda path: path.unlink()])
def test_a_damaged_part_is_refused_by_name(folder, damage):
    number = divide(folder)[1]
    name = f"weights/{number}/shard-1-of-{PARTS}.npy"
    damage(folder / name)
    with pytest.raises(RecsysError, match=rf"R310.*{name}"):
        load_model(folder)


@pytest.mark.parametrize("damage", [truncate, lambda path: path.unlink(), replace])
def test_damaged_features_of_users_are_refused_by_name(folder, damage):
    damage(folder / "user_features" / "plan.npy")
    with pytest.raises(RecsysError, match=r"R221.*user_features/plan\.npy"):
        load_model(folder)
    without_checksums(folder)
    with pytest.raises(RecsysError, match=r"R230.*user_features"):
        load_model(folder)


def without_checksums(folder):
    """Leaves a model folder as an earlier version wrote it."""
    (folder / "inputs.json").unlink()


def test_a_model_whose_features_are_gone_is_refused(folder):
    shutil.rmtree(folder / "user_features")
    with pytest.raises(RecsysError, match=r"R221.*user_features"):
        load_model(folder)
    without_checksums(folder)
    with pytest.raises(RecsysError, match=r"R310.*features"):
        load_model(folder)


@pytest.fixture
def probe(folder):
    query, candidates = np.eye(3, DIM, dtype=np.float32), np.ones((7, DIM), np.float32)
    np.savez(folder / "probe.npz", user_row=[1, 2, 3], history=[[0], [1], [2]], query=query)
    np.save(folder / "candidates.npy", candidates)
    return read_probe(folder)


@pytest.mark.parametrize("tower", ["query", "candidate"])
def test_a_model_whose_code_has_changed_is_refused(folder, probe, tower):
    near, far = (
        (probe.query + by * (tower == "query"), probe.candidates + by * (tower == "candidate"))
        for by in (5e-5, 2e-4)
    )
    check_probe(folder, probe, near[0], [(slice(None), near[1])])
    parts = [(slice(0, 3), far[1][:3]), (slice(3, 7), far[1][3:])]
    with pytest.raises(RecsysError, match=r"R311.*train again"):
        check_probe(folder, probe, far[0], parts)


@pytest.mark.parametrize("damage", [truncate, lambda path: path.unlink()])
@pytest.mark.parametrize("file", ["probe.npz", "candidates.npy"])
def test_a_damaged_probe_is_refused_by_name(folder, probe, file, damage):
    damage(folder / file)
    with pytest.raises(RecsysError, match=r"R310.*model"):
        read_probe(folder)


def test_a_full_disk_is_an_error_and_no_crash(data, tmp_path):
    (tmp_path / "model" / "weights").mkdir(parents=True)
    (tmp_path / "model" / "weights" / "0.npy").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path / "model", build(data), STAGE, data[0])
