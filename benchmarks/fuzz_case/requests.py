"""Requests of a server whose models are stand-ins: as bytes, and by its OpenAPI page."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema_rs
from hypothesis import strategies as st

from benchmarks.fuzz_case.case import CRASH, Example, Finding, broken, require

_TIMEOUT_S = 60.0
_RECOMMEND = "/api/recommend"
_NAMES = [
    "instances", "inputs", "signature_name", "x", "b64", "user_id", "history", "exclude_seen",
    "exclude_ids", "only_genre", "country", "user", "items", "exclude", "only", "genre", "k",
    "version", "self", "signature", "__class__", "", "\ud83d\ude00", "\0",
]  # fmt: skip
_TEXTS = ["", "u1", "i1", "noir", "recommend", "recommend_filtered", "serving_default", "total",
          "named", "x" * 2000, "\x1b[31m", "AAAA", "\0", "%00"]  # fmt: skip
_PATHS = [
    "/v1/models/m:predict", "/v1/models/m/versions/1:predict", "/v1/models/m/versions/9:predict",
    "/v1/models/x:predict", "/v1/models/m/versions/99999999999999999999:predict",
    "/v1/models/m", "/v1/models/m/metadata", _RECOMMEND, "/api/about", "/healthz", "/metrics",
    "/api/users", "/api/items", "/api/similar", "/api/tokens", "/", "/static/page.js",
    "/openapi.json",
]  # fmt: skip
_GOOD = [
    (_PATHS[0], {"signature_name": "recommend", "instances": [
        {"user_id": "u1", "history": [""], "exclude_seen": True, "country": [""]}]}),
    (_RECOMMEND, {"user": "u1", "k": 3, "only": {"genre": ["noir"]}, "exclude": ["i1"]}),
    (_RECOMMEND, {"items": ["i1", "i2"], "exclude_seen": False, "version": 1}),
]  # fmt: skip


class Server:
    """Requests that are made by hand: names, bytes, depths and lengths that nobody expects."""

    def __init__(self) -> None:
        serving = import_module("serving")
        stack = contextlib.ExitStack()
        running = [
            stack.enter_context(serving.Running(versions=(1, 2), kind=kind))
            for kind in (serving.FakeRecommender, serving.FakeModel)
        ]
        self._stack = stack
        self._addresses = [one.address for one in running]
        page = json.loads(self._ask(0, b"GET /openapi.json HTTP/1.1\r\n", b"")[1])
        self._wish = jsonschema_rs.validator_for(_schema_of(page, _RECOMMEND))

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns requests: the first line and headers, and the body."""
        values = st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(_TEXTS),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4)
            ),
            max_leaves=12,
        )
        bodies = st.dictionaries(st.sampled_from(_NAMES), values, max_size=5)
        made = st.tuples(st.sampled_from(_PATHS), bodies) | _near(values)
        return made.flatmap(lambda pair: _request(*pair))

    def take(self, example: Example, path: Path) -> None:
        """Sends a request, and judges the answer."""
        head = example.facts["head"].encode("latin-1")
        status, text = self._ask(example.facts["server"], head, example.content)
        if status == 500 or status not in (*range(200, 500), 503):
            raise Finding(CRASH, f"{status} {text[:400]!r}")
        if status >= 400 and head.startswith(b"POST"):
            require(set(json.loads(text)) == {"error"}, f"{status} without a sentence: {text!r}")
        if status == 200 and _RECOMMEND in example.facts["head"]:
            body = json.loads(example.content)
            require(self._wish.is_valid(body), "took a wish that the OpenAPI page refuses")

    def _ask(self, server: int, head: bytes, body: bytes) -> tuple[int, bytes]:
        length = f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(self._addresses[server], timeout=_TIMEOUT_S) as connection:
            with contextlib.suppress(ConnectionError):  # It may answer before it has read all.
                connection.sendall(head + length.encode() + body)
            answer = http.client.HTTPResponse(connection, method=head.split()[0].decode())
            answer.begin()
            return answer.status, answer.read()


def _schema_of(page: dict[str, Any], path: str) -> dict[str, Any]:
    content = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return {**content["schema"], "components": page["components"]}


@st.composite
def _near(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[str, Any]:
    """Returns a good request, one of whose values is another."""
    path, body = draw(st.sampled_from(_GOOD))
    body = json.loads(json.dumps(body))
    inner = body["instances"][0] if "instances" in body else body
    inner[draw(st.sampled_from([*inner, *_NAMES]))] = draw(values)
    return path, body


@st.composite
def _request(draw: st.DrawFn, path: str, body: Any) -> Example:
    content = json.dumps(body).encode()
    if draw(st.integers(0, 2)) == 0:
        content = draw(broken(content))
    method = draw(st.sampled_from(["POST"] * 4 + ["GET", "PUT", "HEAD", "OPTIONS"]))
    if method == "GET":
        names = st.sampled_from(["prefix", "words", "item", "filter", "version", "k", "limit"])
        texts = st.text("aiu1%+&=é\0\x7f", max_size=8) | st.sampled_from(_TEXTS)
        query = draw(st.dictionaries(names, texts, max_size=3))
        path += "?" + "&".join(f"{name}={_quoted(text)}" for name, text in query.items())
        content = b""
    kinds = ["application/json"] * 4 + ["text/plain", "", "application/json; charset=utf-16", "é"]
    head = f"{method} {path} HTTP/1.1\r\nContent-Type: {draw(st.sampled_from(kinds))}\r\n"
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(["Content-Encoding", "Accept", "Origin", "X-A", "Range"]))
        head += f"{name}: {draw(st.sampled_from(['gzip', 'x' * 500, 'é', '', 'bytes=0-1']))}\r\n"
    server = 0 if "/api/" in path else draw(st.integers(0, 1))
    return Example("body", content, {"head": head, "server": server})


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


class Api:
    """Requests that schemathesis makes of the OpenAPI page: fitting ones, and ones that don't."""

    def __init__(self) -> None:
        import schemathesis
        from schemathesis.checks import CHECKS

        serving = import_module("serving")
        self._stack = contextlib.ExitStack()
        running = self._stack.enter_context(
            serving.Running(versions=(1, 2), kind=serving.FakeRecommender)
        )
        self._page = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        self._modes = list(schemathesis.GenerationMode)
        # The page can't say what a signature takes: valid requests may be refused.
        self._without = CHECKS.get_by_names(["positive_data_acceptance"])

    def strategy(self) -> st.SearchStrategy[Example]:
        """Returns requests of every route."""
        routes: list[Any] = [result.ok() for result in self._page.get_all_operations()]  # type: ignore[union-attr]
        cases: list[st.SearchStrategy[Any]] = [
            route.as_strategy(generation_mode=mode) for route in routes for mode in self._modes
        ]
        return st.one_of(cases).map(lambda case: Example("request.txt", _curl(case), {}, case))

    def take(self, example: Example, path: Path) -> None:
        """Sends a request, and holds the answer to the page."""
        from schemathesis.core.failures import Failure, FailureGroup

        try:
            answer = example.live.call(timeout=_TIMEOUT_S)
            example.live.validate_response(answer, excluded_checks=self._without)
        except (Failure, FailureGroup) as failure:
            failures = getattr(failure, "exceptions", [failure])
            texts = [f"{one.title}: {one.message}" for one in failures]
            is_crash = any("server error" in text.lower() for text in texts)
            require(is_crash, "; ".join(texts))
            raise Finding(CRASH, "; ".join(texts)) from None


def _curl(case: Any) -> bytes:
    try:
        return str(case.as_curl_command()).encode("utf-8", "replace")
    except ValueError as error:
        return f"{case!r} {error}".encode("utf-8", "replace")
