"""`recsys serve` as a process, with real bundles, published, damaged and rolled back."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from places import ROOT

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("tensorflow", reason="needs the extra `serve`")
import httpx
import requesting
import rpc
from system_worlds import HISTORY

import recsys
from recsys.bundles.bundle import write_manifest
from recsys.bundles.publishing import publish, rollback
from recsys.cli import main
from recsys.data.transitions import TransitionScores
from recsys.data.vocabulary import Vocabulary
from recsys.index.config import IndexConfig
from recsys.index.search import build_index

pytestmark = pytest.mark.slow

_K, _DIM = 5, 8
_START_S = 240  # TensorFlow may start slowly where all cores are taken.


@pytest.fixture(scope="module")
def bundle(exported_world):
    """A bundle of an untrained model, with rows that unknown users and items share."""
    return exported_world.bundle


def item_names(bundle):
    """Returns the id of each item row; the empty one where no item has a row."""
    return Vocabulary.load(bundle / "vocabulary" / "items.parquet").names_of_rows()


def another(bundle, folder, note, change=lambda _: None):
    """Returns a bundle of the same model and other content."""
    out = folder / f"bundle-{note}"
    shutil.copytree(bundle, out)
    (out / "MODEL_CARD.md").write_text(note)
    change(out)
    fields = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").unlink()
    write_manifest(out, {key: value for key, value in fields.items() if key != "files"})
    return out


def add_index(bundle):
    """Gives a bundle an index of one list, which finds everything."""
    items = np.load(bundle / "item_embeddings.npy")
    is_item = np.array([bool(name) for name in item_names(bundle)])
    build_index(bundle, items, is_item, items[:0], _K, IndexConfig(kind="ann", lists=1))


class Process:
    """A `recsys serve` that runs."""

    def __init__(self, *arguments, cwd=ROOT):
        words = ("--grpc-port", "0", "--json")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recsys", "serve", "--port", "0", *words, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        assert line, "".join(self.said)
        addresses = json.loads(line)
        self.url, self.grpc = addresses["url"], addresses["grpc"]

    def _read(self):
        self.said.extend(self.process.stderr)

    @property
    def log(self):
        return "".join(self.said)

    def version(self):
        answer = requesting.get(f"{self.url}/healthz", timeout=30)
        return answer.json()["version"] if answer.status_code == 200 else None

    def wait_for(self, condition, seconds=_START_S):
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)

    def predict(self, signature, name="world", **body):
        content = {"signature_name": signature, **body}
        return requesting.post(f"{self.url}/v1/models/{name}:predict", json=content, timeout=60)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@contextlib.contextmanager
def running(*arguments, **more):
    server = Process(*arguments, **more)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        server.process.stdout.close()
        server._reader.join(10)
        server.process.stderr.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("root") / "serving" / "world"


@pytest.fixture(scope="module")
def without_version(folder):
    """A server of a folder that is not there yet."""
    with running("--root", str(folder.parent.parent), "--name", "world") as process:
        yield process


@pytest.fixture(scope="module")
def answer_before(without_version):
    """Answers before the first version was pushed."""
    return without_version.predict("recommend", instances=[ASK])


@pytest.fixture(scope="module")
def server(without_version, answer_before, folder, bundle):
    publish(bundle, folder, 9)
    without_version.wait_for(without_version.version)
    return without_version


ASK = {"user_id": "u4", "history": [""], "exclude_seen": False}


def test_nothing_is_served_until_something_is_pushed(answer_before, server):
    assert (answer_before.status_code, "[R559]" in answer_before.json()["error"]) == (503, True)
    assert server.version() == 1


def test_answers_are_the_best_items_by_the_embeddings_of_the_bundle(server, bundle):
    items, names = np.load(bundle / "item_embeddings.npy"), item_names(bundle)
    asked = [{**ASK, "user_id": f"u{n}"} for n in range(4, 11)]
    embedded = [{key: row[key] for key in ("user_id", "history")} for row in asked]
    queries = np.array(server.predict("embed_query", instances=embedded).json()["predictions"])
    users = [row["user_id"] for row in asked]
    stored = server.predict("stored_history", inputs=users).json()["outputs"]["item_ids"]
    rows = np.array([[names.index(id_) if id_ else 0 for id_ in ids] for ids in stored])
    added = TransitionScores.load(bundle).of_histories(rows[:, :HISTORY]).toarray()
    scores = np.where([bool(name) for name in names], queries @ items.T + added, -np.inf)
    found = server.predict("recommend", instances=asked).json()["predictions"]
    for mine, theirs in zip(scores, found, strict=True):
        best = np.argsort(-mine)[:_K]
        assert theirs["candidate_ids"] == [names[row] for row in best]
        np.testing.assert_allclose(theirs["scores"], mine[best], atol=1e-6)
        assert theirs["known"] is True
    columns = {key: [row[key] for row in asked] for key in ASK}
    assert server.predict("recommend", inputs=columns).json()["outputs"]["candidate_ids"] == [
        row["candidate_ids"] for row in found
    ]


def test_rest_grpc_and_python_give_equal_answers(server, folder):
    users = ["u4", "u5", "nobody"]
    columns = {"user_id": users, "history": [[""]] * 3, "exclude_seen": [True] * 3}
    by_rest = server.predict("recommend", inputs=columns).json()["outputs"]

    by_grpc = rpc.predict(server.grpc, rpc.predict_request(columns, "world", "recommend"))

    bundle = recsys.load_bundle(folder)
    by_python = bundle.recommend(users=users, k=_K, exclude_seen=True)
    ids = [[item.id for item in answer] for answer in by_python]
    assert by_rest["candidate_ids"] == ids
    assert by_grpc["candidate_ids"].astype(str).tolist() == ids
    np.testing.assert_array_equal(np.float32(by_grpc["scores"]), np.float32(by_rest["scores"]))


def test_one_output_is_unnested_and_exclusions_hold(server):
    history = server.predict("stored_history", inputs=["u4"]).json()["outputs"]["item_ids"][0]
    asked = {**ASK, "exclude_seen": True}
    [found] = server.predict("recommend", instances=[asked]).json()["predictions"]
    assert not set(history) & set(found["candidate_ids"]) - {""}
    query = {"user_id": ["u1", "u2"], "history": [[""], [""]]}
    embedding = server.predict("embed_query", inputs=query).json()["outputs"]
    assert np.shape(embedding) == (2, _DIM)


@pytest.mark.parametrize(
    "id_", ["", "nobody", "../../etc/passwd", "a\x00b", "x" * 10**6, "💥", "%s", "\n"], ids=ascii
)
def test_unknown_ids_of_any_content_are_answered_as_unknown(server, id_):
    [found] = server.predict("recommend", instances=[{**ASK, "user_id": id_}]).json()["predictions"]
    assert (found["known"], len(found["candidate_ids"])) == (False, _K)


def test_serialized_examples_are_asked_and_others_refused(server):
    answer = server.predict("serving_default", instances=[{"b64": ""}])
    assert answer.json()["predictions"][0]["known"] is False
    for example in ("no tf.Example", {"b64": "/////w=="}):  # The second is no text either.
        answer = server.predict("serving_default", instances=[example])
        assert (answer.status_code, "[R563]" in answer.json()["error"]) == (400, True)


def test_metadata_are_those_of_the_saved_model(server):
    found = requesting.get(f"{server.url}/v1/models/world/metadata").json()
    signatures = found["metadata"]["signature_def"]["signature_def"]
    history = signatures["recommend"]["inputs"]["history"]
    assert history["dtype"] == "DT_STRING"
    assert [dim["size"] for dim in history["tensor_shape"]["dim"]] == ["-1", "-1"]
    outputs = {"candidate_ids", "scores", "known", "source"}
    assert set(signatures["recommend"]["outputs"]) == outputs
    assert found["model_spec"]["version"] == "1"


def test_versions_come_and_go_under_load_and_no_request_fails(server, folder, bundle, tmp_path):
    is_over = threading.Event()

    def ask():
        n, versions = 0, set()
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not is_over.wait(0.02):  # The server needs the cores for what it loads.
                body = {"signature_name": "recommend", "instances": [ASK]}
                answer = client.post("/v1/models/world:predict", json=body)
                assert answer.status_code == 200, answer.text
                assert len(answer.json()["predictions"][0]["candidate_ids"]) == _K
                n += 1
        return n, versions

    with concurrent.futures.ThreadPoolExecutor(2) as clients:
        asking = [clients.submit(ask) for _ in range(2)]
        try:
            publish(another(bundle, tmp_path, "two"), folder, 9)
            server.wait_for(lambda: server.version() == 2)
            broken = publish(another(bundle, tmp_path, "three"), folder, 9)
            (broken / "variables" / "variables.index").write_bytes(b"broken")
            server.wait_for(lambda: "version 3 refused: [R502]" in server.log)
            assert server.version() == 2
            publish(another(bundle, tmp_path, "four"), folder, 9)
            server.wait_for(lambda: server.version() == 4)
            shutil.rmtree(broken)
            rollback(folder)
            server.wait_for(lambda: server.version() == 2)
        finally:
            is_over.set()
        assert sum(asked.result()[0] for asked in asking) > 100
    metrics = requesting.get(f"{server.url}/metrics").text
    assert "recsys_model_load_failures_total 1.0" in metrics
    assert "recsys_model_swaps_total 3.0" in metrics


def test_the_index_of_a_bundle_answers(server, folder, bundle, tmp_path):
    pytest.importorskip("faiss", reason="needs FAISS")
    before = server.predict("recommend", instances=[ASK]).json()
    indexed = another(bundle, tmp_path, "indexed", add_index)
    number = int(publish(indexed, folder, 9).name)
    server.wait_for(lambda: server.version() == number)
    found = server.predict("recommend", instances=[ASK]).json()
    assert found["predictions"][0]["candidate_ids"] == before["predictions"][0]["candidate_ids"]
    scores = [answer["predictions"][0]["scores"] for answer in (found, before)]
    np.testing.assert_allclose(*scores, atol=1e-6)


def test_a_signal_before_the_first_version_ends_the_server_at_once(
    tmp_path,
):
    with running("--root", str(tmp_path), "--name", "world", "--host", "::") as server:
        assert "reached from other machines" in server.log
        assert server.stop() == 0


def _in_flight(server):
    [line] = [
        line
        for line in requesting.get(f"{server.url}/metrics").text.splitlines()
        if line.startswith("recsys_requests_in_flight ")
    ]
    return float(line.split()[1])


@pytest.mark.parametrize(
    "words",
    ["--model-dir {bundle}", "--model-dir x --root x", "--root x --name ../x"],
)
def test_an_invalid_bundle_is_not_served(bundle, capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *words.format(bundle=bundle).split()])
    assert (ended.value.code, "[R565]" in capsys.readouterr().err) == (2, True)


def test_without_the_packages_of_the_extra_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "recsys.serving.service", None)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--model-dir", str(tmp_path)])
    said = capsys.readouterr().err
    assert (ended.value.code, "[R550]" in said, "serve" in said) == (2, True, True)


def test_a_port_that_is_taken_is_said_in_a_sentence(server, tmp_path):
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "recsys", "serve", "--model-dir", str(tmp_path)]
    finished = subprocess.run(
        [*command, "--port", port], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 2
    assert "[R565]" in finished.stderr
    assert "in use" in finished.stderr


def test_sigterm_ends_in_peace(server):
    """The last test: a large batch is in flight when the signal comes."""
    rows = [{**ASK, "history": ["i1"] * 900}] * 1000
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        asked = clients.submit(server.predict, "recommend", instances=rows)
        server.wait_for(lambda: _in_flight(server) > 1)
        assert server.stop() == 0
        assert len(asked.result().json()["predictions"]) == 1000
    assert "Traceback" not in server.log
