"""Model folders and bundles as they are measured, on their own data and on others'."""

import gc
import json
import shutil
import types

import jax
import keras
import numpy as np
import pyarrow as pa
import pytest
from commands import run_main
from hypothesis import given
from hypothesis import strategies as st
from model_parts import change
from system_worlds import HISTORY

from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import publish
from recsys.config import EvaluateStage, VocabularyConfig
from recsys.data.catalogue import write_titles
from recsys.data.vocabulary import Vocabulary
from recsys.embedding import device_mesh
from recsys.errors import RecsysError
from recsys.evaluation import evaluator
from recsys.evaluation.evaluator import open_evaluation_data
from recsys.serving.catalogue_search import CatalogueSearch
from recsys.tasks.bundle_process import BundleProcess
from recsys.tasks.model_folder import load_model
from recsys.tasks.retrieval.judging.queries import make_queries
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.side import RetrievalJudging
from recsys.tasks.retrieval.judging.systems import System, SystemEmbeddings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(exported_world):
    return exported_world


@pytest.fixture(
    scope="module",
    params=[None, pytest.param(2, marks=pytest.mark.thorough)],
    ids=["in memory", "on devices"],
)
def mesh(request):
    """Location of the candidates; on devices they are split as with several processes."""
    return request.param and device_mesh(devices=request.param)


def open_system(path, data, name=None, mesh=None):
    return evaluator.open_system(RetrievalJudging(EvaluateStage(), data), path, name, mesh)


def open_on(mesh, path, data, name=None):
    """Opens a system, and leaves no layout active."""
    try:
        return open_system(path, data, name, mesh)
    finally:
        keras.distribution.set_distribution(None)


@pytest.fixture(scope="module")
def opened(world, mesh):
    """The model and its bundle on each of the data folders, with the latter."""
    views = {n: open_evaluation_data(getattr(world, n)) for n in ("data", "later")}
    return {
        name: (view, [open_on(mesh, path, view) for path in (world.model, world.bundle)])
        for name, view in views.items()
    }


@pytest.fixture(scope="module", params=["data", "later"])
def measured(opened, request):
    """The queries at each moment of one data folder, and their embeddings."""
    data, subjects = opened[request.param]
    queries = make_queries(data.store, "each_moment")
    return (
        data,
        queries,
        subjects,
        [subject.scorer_of(queries).products.query for subject in subjects],
    )


def by_hand(world, data, queries):
    """Returns the embeddings of queries, one after the other, by the ids of what was done."""
    saved = load_model(world.model)
    names = data.items.names_of_rows()
    is_same = names == saved.items.names_of_rows()
    rows = np.zeros((len(queries), HISTORY), np.int32)
    offsets = queries.seen.offsets
    for n in range(len(queries)):
        done = queries.seen.rows[offsets[n] : offsets[n + 1]].tolist()
        for place, row in enumerate(done[::-1][:HISTORY]):
            theirs = saved.items.rows([names[row]])[0] if names[row] else 0
            rows[n, place] = row if is_same else theirs
    ids = data.store.eval_users.ids.to_pylist()
    users = saved.users.rows([ids[user] for user in queries.user])
    return towers_of(saved)(users, rows)


def towers_of(saved):
    """Returns a function of user rows and histories: the trainer's tower, as one program."""
    tower = jax.jit(saved.model.embed_query)
    return lambda *rows: np.asarray(tower(saved.inputs.query(*rows, saved.model.config)))


def test_a_folder_and_its_bundle_embed_queries_as_the_towers_do(world, measured):
    data, queries, _, (of_model, of_bundle) = measured
    expected = by_hand(world, data, queries)
    assert of_model.dtype == of_bundle.dtype == np.float32
    np.testing.assert_allclose(of_model, expected, atol=1e-5)
    np.testing.assert_allclose(of_bundle, expected, atol=1e-5)
    # The world has the hard cases: empty histories, items without a row, unknown users.
    lengths = np.diff(queries.seen.offsets)
    assert (lengths == 0).any()
    assert (lengths > HISTORY).any()
    assert not data.items.has_id()[queries.histories(HISTORY)[lengths > HISTORY]].all()


def test_candidates_are_the_items_that_both_know(world, measured):
    data, _, subjects, _ = measured
    saved, candidates = load_model(world.model), np.load(world.model / "candidates.npy")
    row_of = {id_: row for row, id_ in enumerate(saved.items.names_of_rows()) if id_}
    names = data.items.names_of_rows()
    for subject in subjects:
        assert subject.is_candidate.tolist() == [name in row_of for name in names]
        embeddings = np.asarray(subject.candidates)
        for name, embedding in zip(names, embeddings, strict=True):
            expected = candidates[row_of[name]] if name in row_of else np.zeros(8)
            np.testing.assert_allclose(embedding, expected, atol=1e-5)
        assert (embeddings.dtype, len(subject.candidates)) == (np.float32, len(names))


@pytest.mark.parametrize("where", ["data", "bundle"])
def test_what_has_left_the_data_or_the_bundle_is_no_candidate(world, where, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(getattr(world, where), folder)
    gone = ["i6", "i7"]
    items = Vocabulary.load(folder / "vocabulary" / "items.parquet")
    rows = items.rows(gone)
    items.row_counts[rows], items.last_seen[rows - items.first_own_row] = 0, items.cut - 1
    items.save(folder / "vocabulary" / "items.parquet")
    write_titles(folder / "catalogue" if where == "data" else folder, items, ())
    places = {"data": world.data, "bundle": world.bundle, where: folder}
    if where == "bundle":
        bundles.write_manifest(folder, bundles.read_manifest(folder))
    data = open_evaluation_data(places["data"])
    whole = open_system(world.model, open_evaluation_data(world.data)).is_candidate
    system = open_system(places["bundle"], data)
    left = data.items.ids_of_rows.take(pa.array(np.flatnonzero(whole & ~system.is_candidate)))
    assert left.to_pylist() == gone
    if where == "bundle":
        is_item = CatalogueSearch.open(folder).is_item
        assert np.flatnonzero(items.has_id() & ~is_item).tolist() == rows.tolist()


def test_a_folder_and_its_bundle_rank_alike(measured):
    _, queries, subjects, _ = measured
    found = [
        rank(subject.scorer_of(queries), queries.positives, queries.seen, subject.is_candidate, 5)
        for subject in subjects
    ]
    np.testing.assert_array_equal(*(one.ranks for one in found))
    np.testing.assert_array_equal(*(one.top for one in found))
    assert len(np.unique(found[0].ranks)) > 10


def test_transitions_are_added_by_the_ids_of_items(world, measured):
    data, queries, subjects, _ = measured
    saved = load_model(world.model)
    following, shares = (np.asarray(x.value) for x in saved.model.terms["transitions"].adapted)
    names, theirs = data.items.names_of_rows(), saved.items.names_of_rows()
    expected = np.zeros((len(queries), len(names)), np.float32)
    is_same = names == theirs
    for query, history in enumerate(queries.histories(HISTORY).tolist()):
        for age, row in enumerate(history):
            its = row if is_same else saved.items.rows([names[row]])[0] if names[row] else 0
            for other, share in zip(following[its], shares[its], strict=True):
                if theirs[other] in names:
                    expected[query, names.index(theirs[other])] += 0.5 * 0.5**age * share
    for subject in subjects:
        added = subject.scorer_of(queries).added.toarray()[:, subject.is_candidate]
        np.testing.assert_allclose(added, expected[:, subject.is_candidate], rtol=1e-5, atol=1e-7)


def test_any_user_can_be_queried_and_a_bundle_reports_progress(
    world, opened, tmp_path, monkeypatch
):
    monkeypatch.setenv("RECSYS_EVENTS", str(tmp_path / "events.jsonl"))
    saved = load_model(world.model)
    n = 375
    ids = pa.array(["u1", "nobody at all", "u39", "u1"] * n, pa.large_string())
    history = np.array([[9, 8, 0, 0], [7, 0, 0, 6], [0, 0, 0, 0], [0, 0, 0, 0]] * n, np.int32)
    expected = towers_of(saved)(saved.users.rows(ids), history)
    for subject, path in zip(opened["data"][1], (world.model, world.bundle), strict=True):
        np.testing.assert_allclose(subject.embed(ids, history), expected, atol=1e-5)
        assert (subject.name, subject.history) == (str(path), HISTORY)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["done"], event["total"]) for event in events[-2:]] == [
        (1024, 1500),
        (1500, 1500),
    ]


@pytest.mark.parametrize("kind", ["model", "bundle"])
def test_nothing_to_ask_is_answered_with_nothing(world, kind):
    subject = open_system(getattr(world, kind), open_evaluation_data(world.data))
    none = subject.embed(pa.array([], pa.large_string()), np.zeros((0, HISTORY), np.int32))
    assert (none.shape, none.dtype) == ((0, 8), np.float32)


def test_data_of_other_items_are_refused_with_both_counts(world, tmp_path):
    foreign = shutil.copytree(world.later, tmp_path / "foreign")
    items = Vocabulary(pa.array(["a", "b", "c"]), np.array([1, 1, 1]))
    items.save(foreign / "vocabulary" / "items.parquet")
    for path in (world.model, world.bundle):
        with pytest.raises(RecsysError, match="R403") as refused:
            open_system(path, open_evaluation_data(foreign))
        text = str(refused.value)
        assert all(part in text for part in (str(path), "19 items", "'i0'", "the 3 of", "'a'"))


def test_what_is_neither_kind_is_refused_and_both_kinds_are_named(world, tmp_path):
    data = open_evaluation_data(world.data)
    (tmp_path / "7").mkdir()
    for path in (tmp_path / "missing", tmp_path, world.data):
        with pytest.raises(RecsysError, match=r"R404.*model\.json.*manifest\.json") as refused:
            open_system(path, data)
        found = "has neither" if path.exists() else "is no folder"
        assert repr(str(path)) in str(refused.value)
        assert f"it {found}" in str(refused.value)
    with pytest.raises(RecsysError, match=r"R404.*/7' is the newest"):
        open_system(tmp_path, data)


def test_a_pushed_version_is_a_bundle_like_any_other(world, tmp_path):
    data = open_evaluation_data(world.data)
    pushed = publish(world.bundle, tmp_path / "serving" / "tiny", keep=1)
    found, expected = (open_system(path, data) for path in (pushed, world.bundle))
    np.testing.assert_array_equal(found.candidates, expected.candidates)
    assert found.name == str(tmp_path / "serving" / "tiny" / "1")


def changed(world, tmp_path, change):
    bundle = shutil.copytree(world.bundle, tmp_path / "bundle")
    change(bundle)
    return bundle


def rewritten(bundle, **fields):
    """Writes the manifest anew, so that it lists the files as they are now."""
    manifest = {**bundles.read_manifest(bundle), **fields}
    (bundle / "manifest.json").unlink()
    bundles.write_manifest(bundle, manifest)


def without_numbers(bundle):
    embeddings = np.load(bundle / "item_embeddings.npy")
    embeddings[5:7, 1] = np.nan
    np.save(bundle / "item_embeddings.npy", embeddings)


def of_fewer_items(bundle):
    np.save(bundle / "item_embeddings.npy", np.zeros((3, 8), np.float32))


@pytest.mark.parametrize(
    ("change", "is_listed", "code", "words"),
    [
        (without_numbers, False, "R502", "item_embeddings.npy"),
        (lambda b: (b / "titles.parquet").unlink(), False, "R502", "titles.parquet"),
        (without_numbers, True, "R402", "2 of 26"),
        (of_fewer_items, True, "R409", "(3, 8) embeddings of 26"),
        (lambda b: (b / "item_embeddings.npy").unlink(), True, "R409", "item_embeddings.npy"),
        (lambda b: shutil.rmtree(b / "vocabulary"), True, "R212", "FileNotFound"),
    ],
    ids=["changed", "missing", "no-numbers", "fewer-items", "no-embeddings", "no-vocabulary"],
)
def test_a_damaged_bundle_is_refused_and_named(world, tmp_path, change, is_listed, code, words):
    bundle = changed(world, tmp_path, change)
    if is_listed:
        rewritten(bundle)
    with pytest.raises(RecsysError, match=code) as refused:
        open_system(bundle, open_evaluation_data(world.data))
    assert words in str(refused.value)
    assert str(bundle)[:40] in str(refused.value)


def test_a_bundle_without_its_config_is_refused(world, tmp_path):
    bundle = changed(world, tmp_path, lambda b: rewritten(b, config={}))
    with pytest.raises(RecsysError, match=r"R409.*KeyError"):
        open_system(bundle, open_evaluation_data(world.data))


def test_a_model_that_computes_something_else_is_refused(world, mesh, tmp_path):
    model = shutil.copytree(world.model, tmp_path / "model")
    candidates = np.load(model / "candidates.npy")
    candidates[-1] += 0.01
    np.save(model / "candidates.npy", candidates)
    with pytest.raises(RecsysError, match="R311"):
        open_on(mesh, model, open_evaluation_data(world.later))


def test_a_model_without_numbers_is_refused_by_its_name(world, mesh, tmp_path):
    model = shutil.copytree(world.model, tmp_path / "model")
    change(model, "items/embeddings", lambda rows: np.full_like(rows, np.nan))
    with pytest.raises(RecsysError, match=r"R402.*of yesterday's \(/.*/model\)"):
        open_on(mesh, model, open_evaluation_data(world.data), "yesterday's")


def test_a_data_folder_without_its_items_is_refused(world, tmp_path):
    data = shutil.copytree(world.data, tmp_path / "data")
    (data / "vocabulary" / "items.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(RecsysError, match=r"R212.*items\.parquet"):
        open_evaluation_data(data)
    (data / "vocabulary" / "items.parquet").unlink()
    with pytest.raises(RecsysError, match=r"R212.*items\.parquet"):
        open_evaluation_data(data)
    shutil.rmtree(data / "store")
    with pytest.raises(RecsysError, match="R220"):
        open_evaluation_data(data)


def test_without_tensorflow_the_error_names_what_to_install(world, tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('none here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    subject = open_system(world.bundle, open_evaluation_data(world.data))
    with pytest.raises(RecsysError, match=r"R542.*recsys\[serve\]"):
        subject.embed(pa.array(["u1"]), np.zeros((1, HISTORY), np.int32))
    with pytest.raises(RecsysError, match=r"R610.*exit code 1"):
        subject.embed(pa.array(["u1"]), np.zeros((1, HISTORY), np.int32))


def test_a_process_that_dies_is_reported_and_one_that_is_unused_ends(world):
    process = BundleProcess(world.bundle)
    child = process._stage._process
    child.kill()
    with pytest.raises(RecsysError, match=r"R610.*tasks\.bundle_process.*exit code -9"):
        process.signatures  # noqa: B018
    process = BundleProcess(world.bundle)
    child = process._stage._process
    assert child.poll() is None
    del process
    gc.collect()
    assert child.poll() is not None


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A config of two cut-offs for the command line."""
    config = tmp_path_factory.mktemp("config") / "small.yaml"
    config.write_text(
        "name: small\n"
        "root: runs\n"
        "data:\n"
        "  interactions: {files: e.csv, columns: {user: u, item: i, timestamp: t}}\n"
        "  items: {files: i.csv, columns: {item: i, title: n}}\n"
        "evaluate: {k: [5, 10]}\n"
        "bless: {metric: recall@5}\n"
    )
    return config


def answer_to(capfd, *words):
    """Returns the exit code of a command, its JSON and what it said."""
    code, printed = run_main(*words), capfd.readouterr()
    return code, printed.out and json.loads(printed.out), printed.err


@pytest.fixture(scope="module")
def evaluated(world, configured, tmp_path_factory):
    """The evaluation of the bundle against the model that it was made of."""
    out = tmp_path_factory.mktemp("evaluated")
    words = ["evaluate", world.bundle, "--against", world.model, "--data", world.later]
    words += ["--out", out, "--config", configured]
    assert run_main(*words) == 0
    assert (out / "report.html").stat().st_size > 10_000
    return json.loads((out / "evaluation.json").read_text())


def test_the_command_line_measures_a_bundle_as_the_model_that_it_was_made_of(evaluated):
    metrics, of_model = evaluated["metrics"], evaluated["blessed_model"]
    assert metrics == pytest.approx(of_model, abs=1e-5)  # Diversity is of embeddings.
    of_ranks = [name for name in metrics if not name.startswith("diversity")]
    assert {name: metrics[name] for name in of_ranks} == {name: of_model[name] for name in of_ranks}
    assert 0 < metrics["recall@5"] < metrics["recall@10"] < 1
    for difference in evaluated["comparisons"]["blessed_model"].values():
        assert (difference["difference"], difference["difference_interval"]) == (0.0, [0.0, 0.0])


def test_the_command_line_compares_two_models(world, configured, evaluated, capfd):
    words = ["--data", world.later, "--config", configured]
    code, found, said = answer_to(capfd, "compare", world.model, world.other, *words)
    assert code == 0
    for name, one in found["metrics"].items():
        assert one["a"] == pytest.approx(evaluated["metrics"][name], abs=1e-12)
        assert one["b"] - one["a"] == pytest.approx(one["difference"], abs=1e-12)
        low, high = one["difference_interval"]
        assert low <= one["difference"] <= high
        assert one["better"] == ("b" if low > 0 else "a" if high < 0 else None)
    assert any(one["difference"] != 0 for one in found["metrics"].values())
    assert found["queries"] == evaluated["queries"]
    assert found["sentence"] in said


IDS = st.lists(st.sampled_from([f"x{n}" for n in range(6)]), unique=True)
BUCKETS = st.sampled_from([0, 3])


def vocabulary(ids, n_hash_rows):
    config = VocabularyConfig(hash_buckets=n_hash_rows)
    return Vocabulary(pa.array(ids, pa.string()), np.ones(len(ids)), config=config)


@given(ours=st.tuples(IDS, BUCKETS), theirs=st.tuples(IDS, BUCKETS))
def test_rows_of_any_two_vocabularies_meet_by_their_ids(ours, theirs):
    mine, own = vocabulary(*ours), vocabulary(*theirs)
    candidates = np.arange(1.0, 1 + own.n_rows, dtype=np.float32)[:, None]
    asked = []

    def queries(user_ids, rows):
        asked.extend(rows.tolist())
        return np.zeros((len(user_ids), 1), np.float32)

    towers, view = (
        SystemEmbeddings(own, candidates, 3, queries),
        types.SimpleNamespace(store=types.SimpleNamespace(cut=0), items=mine, event_features=()),
    )
    if not set(ours[0]) & set(theirs[0]):
        with pytest.raises(RecsysError, match="R403"):
            System("it", towers, view)
        return
    subject = System("it", towers, view)
    names = mine.names_of_rows()
    place = {id_: own.first_own_row + n for n, id_ in enumerate(theirs[0])}
    of_id = [place.get(id_, 0) for id_ in names]
    assert subject.is_candidate.tolist() == [row > 0 for row in of_id]
    assert subject.candidates[:, 0].tolist() == [row + 1.0 if row else 0.0 for row in of_id]
    subject.embed(pa.array(["u"]), np.arange(mine.n_rows)[None])
    by_id = [int(own.rows([name])[0]) if name else 0 for name in names]
    assert asked == [list(range(mine.n_rows)) if ours == theirs else by_id]
