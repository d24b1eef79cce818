"""The ASGI app: all routes, the page, and the checks before them."""

from __future__ import annotations

import ipaddress
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from recsys import __version__
from recsys.serving.saved_model import AnswerTooLargeError, UnreadableInputsError
from recsys.serving.server import page_api, predict
from recsys.serving.server.connections import Connections
from recsys.serving.server.http_errors import (
    BAD_REQUEST,
    JSON,
    MISDIRECTED,
    UNAVAILABLE,
    HttpError,
    documented,
    send_error,
)
from recsys.serving.server.limits import Bodies, Limits
from recsys.serving.server.micro_batcher import MicroBatcher
from recsys.serving.server.pool import Pool
from recsys.serving.server.prometheus import ServerMetrics

_PAGE = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    # Nothing from elsewhere, and nothing inside the page: a title can't become a script.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class App:
    """The whole server as an ASGI app.

    Args:
        pool: The model.
        limits: How much a client may ask for.
        metrics: What is counted.
        hosts: Names that a Host header may have beside addresses of this machine; None
            for any, where the server is reached from elsewhere.

    Attributes:
        connections: Those that are open; its protocol adds and removes them.
        work: What runs in threads.
        bodies: Reads bodies.
    """

    def __init__(
        self,
        pool: Pool,
        limits: Limits,
        metrics: ServerMetrics,
        hosts: tuple[str, ...] | None = None,
    ) -> None:
        self.work = MicroBatcher(limits)
        self._metrics, self._hosts, self._limits = metrics, hosts, limits
        self.connections = Connections(limits, metrics.dropped.inc)
        self._routes = _routes(pool, self.work, limits, metrics)
        self.bodies = Bodies(limits)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers a request; a HEAD as a GET, whose body the server leaves out."""
        if scope["type"] == "http":
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
            await self._metrics.watch(self._answer, scope, receive, send)

    async def _answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        send, headers = self.connections.limited(send), dict(scope["headers"])
        try:
            self._check(headers)
            body = await self.bodies.read(headers, receive)
        except HttpError as error:
            await send_error(send, error, receive)
            return
        if body is None:
            return
        try:
            # Every other method needs no thread of TensorFlow; here a refusal costs least.
            if scope["method"] == "POST":
                self.work.check()
            await self._routes(scope, _replay(body, receive), send)
        except HttpError as error:
            await send_error(send, error)
        finally:
            self.bodies.held_bytes -= len(body)

    def _check(self, headers: dict[bytes, bytes]) -> None:
        most = self._limits.connections
        if len(self.connections) > most:
            rule = f"The server accepts at most {most:,} connections."
            cure = "Keep connections open and reuse them."
            raise HttpError(UNAVAILABLE, "R560", rule, cure, retry_s=1)
        host = headers.get(b"host", b"localhost").decode("latin-1")
        if self._hosts is not None and not _is_own(host, self._hosts):
            # A page elsewhere may have made its own name an address of this machine.
            rule = "The Host header must name this machine."
            cure = "Ask for 127.0.0.1, or start with --allow-host NAME."
            raise HttpError(MISDIRECTED, "R568", rule, cure, host)


def _replay(body: bytes, receive: Any) -> Any:
    """Returns a `receive` that gives the whole body first."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> dict[str, Any]:
        return waiting.pop() if waiting else await receive()

    return replay


def _is_own(host: str, hosts: tuple[str, ...]) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower()
    if name == "localhost" or name in hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _routes(pool: Pool, work: MicroBatcher, limits: Limits, metrics: ServerMetrics) -> FastAPI:
    # The pages of docs come from elsewhere; the OpenAPI page itself is ours.
    app = FastAPI(title="recsys serve", version=__version__, docs_url=None, redoc_url=None)
    app.add_exception_handler(HttpError, _error)
    app.add_exception_handler(UnreadableInputsError, _unreadable)
    app.add_exception_handler(AnswerTooLargeError, _answer_too_large)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.include_router(predict.router(pool, work, limits))
    app.include_router(page_api.router(pool, work))
    app.include_router(page_router())

    @app.get("/healthz", responses=documented(503), tags=["operation"])
    async def healthz() -> dict[str, int]:
        """Tell whether a version is loaded, and which is the newest."""
        return {"version": pool.model().version}

    @app.get("/metrics", response_class=Response, tags=["operation"])
    async def metrics_page() -> Response:
        """Tell Prometheus what happened."""
        return Response(metrics.text(), media_type=_PROMETHEUS)

    return app


def page_router() -> APIRouter:
    """Returns the routes of the page and of its two files."""
    routes = APIRouter(include_in_schema=False)
    folder = resources.files("recsys.serving.server") / "static"

    def add(path: str, content: bytes, media_type: str) -> None:
        @routes.get(path)
        async def file() -> Response:
            return Response(content, headers=_HEADERS, media_type=media_type)

    for file, media_type in _PAGE.items():
        path = "/" if file == "page.html" else f"/static/{file}"
        add(path, (folder / file).read_bytes(), f"{media_type}; charset=utf-8")
    return routes


def _error(_request: Any, error: Any) -> Response:
    return Response(error.body(), error.status, error.headers, media_type=JSON)


def _unreadable(_request: Any, error: Any) -> Response:
    return JSONResponse({"error": str(error)}, BAD_REQUEST)


def _answer_too_large(_request: Any, error: Any) -> Response:
    return JSONResponse({"error": str(error)}, UNAVAILABLE, headers={"Retry-After": "1"})


def _invalid(_request: Any, error: Any) -> Response:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _error(_request, page_api.invalid(where, first["msg"], first["input"]))


def _no_route(_request: Any, error: Any) -> Response:
    sentence = f"[R564] {error.detail}. GET /openapi.json lists the routes."
    return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)
