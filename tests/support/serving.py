"""A server in this process, over real sockets, with a scripted model."""

import contextlib
import json
import socket
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import requesting
import uvicorn
from waiting import wait_for

from recsys.data.vocabulary import Vocabulary
from recsys.index.search import Ranker
from recsys.savedmodel.event_columns import Column, EventColumns
from recsys.savedmodel.signatures import SignatureInput
from recsys.serving.app import App
from recsys.serving.catalogue_search import CatalogueSearch
from recsys.serving.pool import Pool, ServerMetrics
from recsys.serving.predictor import MicroBatcher, Predictor
from recsys.serving.requests import Limits
from recsys.serving.served_model import Retriever, ServedModel
from recsys.serving.service import lifespan, server_config


class FakeModel(ServedModel):
    """Doubles numbers; can be made to wait."""

    answers = "lists"

    @property
    def metadata(self):
        return {"serving_default": {"inputs": {}}}

    def __init__(self, version):
        self.version = version
        self.signatures = {
            "serving_default": {"x": SignatureInput("DT_FLOAT", (-1,))},
            "total": {"x": SignatureInput("DT_FLOAT", (-1,))},
            "named": {
                "id": SignatureInput("DT_STRING", (-1,)),
                "history": SignatureInput("DT_STRING", (-1, -1)),
            },
        }
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Semaphore(0)
        self.n_asked = 0

    def ask(self, signature, inputs):
        self.n_asked += 1
        self.asked.release()
        self.may_answer.wait(30)
        if signature == "named":
            return {"length": np.array([len(id_) for id_ in inputs["id"]]), "id": inputs["id"]}
        doubled = inputs["x"] * 2 + self.version
        return {"y": doubled.sum() if signature == "total" else doubled}


TITLES = [
    "",
    "Red Sea",
    "Blue Sea",
    "<script>alert(1)</script>",
    "Über Wolf",
    "Red Wolf",
    "The end",
]
IDS = ["", "i1", "i2", "i3", "ü", "i5", "i6"]
VECTORS = np.array(
    [[0, 0], [1, 0], [0.8, 0.6], [0, 2], [-1, 0], [0.6, 0.8], [-0.1, -1]], np.float32
)
HISTORIES = {b"u1": [1, 2], b"u2": [4], b"\xc3\xbc1": [5]}
K = 4
GENRES = [["drama"], ["drama", "noir"], [], ["noir"], ["sea", "noir"], []]  # From row 1 on.


def make_catalogue():
    """Returns the catalogue of three users and six items; `i2` has the most events."""
    users = pa.array(sorted(id_.decode() for id_ in HISTORIES), pa.large_string())
    titles = pa.array(TITLES, pa.large_string())
    items = Vocabulary(pa.array(IDS[1:]), np.array([1, 9, 1, 2, 5, 1]))
    features = {"genre": pa.array(GENRES, pa.list_(pa.string()))}
    return CatalogueSearch(users, items, titles, VECTORS, items.has_id(), features)


_TEXT, _TEXTS = SignatureInput("DT_STRING", (-1,)), SignatureInput("DT_STRING", (-1, -1))
_QUERY = {
    "user_id": _TEXT,
    "history": _TEXTS,
    "exclude_seen": SignatureInput("DT_BOOL", (-1,)),
    "country": _TEXTS,
}


class FakeGraph:
    """Likes what is near the last item of the history; the second version says the reverse."""

    def __init__(self, version):
        self.sign, self.metadata, self.asked = 1 if version == 1 else -1, {}, []
        self.signatures = {
            "recommend": _QUERY,
            "prepare_query": _QUERY,
            "recommend_filtered": {**_QUERY, "exclude_ids": _TEXTS, "only_genre": _TEXTS},
            "stored_history": {"user_id": _TEXT},
        }

    def ask(self, signature, inputs):
        self.asked.append({name: values.tolist() for name, values in inputs.items()})
        assert set(inputs) == set(self.signatures[signature])
        stored = HISTORIES.get(inputs["user_id"][0], [])
        if signature == "stored_history":
            ids = np.array([[IDS[row].encode() for row in stored] + [b""]], object)
            return {"item_ids": ids, "known": np.array([bool(stored)])}
        given = [IDS.index(id_.decode()) for id_ in inputs["history"][0] if id_.decode() in IDS]
        liked = [row for row in given if row] or stored
        source = b"user" if stored else b"history" if any(given) else b"popularity"
        about = {"known": np.array([bool(stored)]), "source": np.array([source], object)}
        if signature == "prepare_query":
            seen = np.array(liked if inputs["exclude_seen"][0] else [], np.int32)
            query = VECTORS[liked[0]] if liked else np.zeros(2, np.float32)
            offsets = np.array([0, len(seen)])
            query = {"embedding": self.sign * query[None], "seen_rows": seen}
            return {**query, "seen_offsets": offsets, **about}
        scores = self.sign * VECTORS.sum(axis=1)
        scores[[row for row in range(len(IDS)) if not row or not allows(inputs, row)]] = -np.inf
        best = np.argsort(-scores)[:K]
        ids = [IDS[row].encode() if np.isfinite(scores[row]) else b"" for row in best]
        return {"candidate_ids": np.array([ids], object), "scores": scores[best][None], **about}


def FakeRecommender(version=1):
    """Returns a retriever of the fake graph."""
    graph, catalogue = FakeGraph(version), make_catalogue()
    ranker = Ranker(VECTORS, catalogue.items.has_id())
    retriever = Retriever(graph, catalogue, K, ranker, bundle=Path(str(version)))
    retriever.asked = graph.asked
    return retriever


def with_context(version=1):
    """Returns a retriever of the fake graph whose queries and histories have a device."""
    fake = FakeRecommender(version)
    graph, inputs = fake._graph, {"context_device": _TEXTS, "history_device": _TEXTS}
    for name in ("recommend", "prepare_query", "recommend_filtered"):
        graph.signatures[name] = {**graph.signatures[name], **inputs}
    columns = [{"device": Column(name, "text")} for name in inputs]
    retriever = Retriever(
        graph, fake.catalogue, K, fake._ranker, bundle=fake.bundle, events=EventColumns(*columns)
    )
    retriever.asked = graph.asked
    return retriever


def allows(inputs, row):
    """Returns whether the filters of the one row of `inputs` let an item through."""
    excluded, only = (
        {one.decode() for one in inputs[name][0] if one} if name in inputs else set()
        for name in ("exclude_ids", "only_genre")
    )
    return IDS[row] not in excluded and (not only or bool(only & set(GENRES[row - 1])))


class Running:
    """A server that runs.

    Attributes:
        url: Its address.
        model: The newest version.
        pool: The versions.
    """

    def __init__(
        self,
        limits=None,
        hosts=("127.0.0.1", "::1", "localhost"),
        versions=(3,),
        kind=FakeModel,
        log=lambda metrics: None,
    ):
        self.metrics = ServerMetrics()
        self.pool = Pool("m", Path("nowhere"), kind, 1, self.metrics)
        self.pool.models = tuple(kind(version) for version in versions)
        limits = limits or Limits()
        self.log = log(self.metrics)
        self.predictor = Predictor(self.pool, MicroBatcher(limits), limits, self.log)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.grpc = f"127.0.0.1:{free.getsockname()[1]}"
        beside = lifespan(self.grpc, self.predictor, self.metrics)
        self.app = App(self.predictor, self.metrics, hosts, beside)
        self._server = uvicorn.Server(server_config(self.app, limits))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))

    @property
    def model(self):
        return self.pool.models[-1]

    def predict(self, body=None, path="/v1/models/m:predict", **more):
        content = json.dumps({"instances": [1.0]} if body is None else body)
        return requesting.post(self.url + path, content=content, timeout=30, **more)

    def connect(self):
        return contextlib.closing(socket.create_connection(self.address, timeout=30))

    def __enter__(self):
        self._thread.start()
        wait_for(lambda: self._server.started)
        return self

    def __exit__(self, *_):
        for model in self.pool.models:
            getattr(model, "may_answer", threading.Event()).set()
        self._server.should_exit = True
        self._thread.join()
        self.predictor.work.close()


def raw(connection):
    """Returns all that the server sends until it closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received
