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
from recsys.serving.server import api, openapi, predict
from recsys.serving.server.api import invalid
from recsys.serving.server.connections import Connections, limited
from recsys.serving.server.http_errors import BAD_REQUEST, MISDIRECTED, UNAVAILABLE, HttpError
from recsys.serving.server.limits import BodyLimits, Limits, send_error
from recsys.serving.server.micro_batcher import MicroBatcher
from recsys.serving.server.prometheus import ServerMetrics
from recsys.serving.server.served_models import ServedModel

_TYPES = {
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}
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


def page_router() -> APIRouter:
    """Returns the routes of the page and of its two files."""
    routes = APIRouter(include_in_schema=False)
    folder = resources.files("recsys.serving.server") / "static"
    for file, media_type in _TYPES.items():
        path = "/" if file == "page.html" else f"/static/{file}"
        _add(routes, path, (folder / file).read_bytes(), media_type)
    return routes


def _add(routes: APIRouter, path: str, content: bytes, media_type: str) -> None:
    @routes.get(path)
    async def file() -> Response:
        return Response(content, headers=_HEADERS, media_type=media_type)


_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class App:
    """The whole server as an ASGI app.

    Args:
        served: The model.
        limits: How much a client may ask for.
        metrics: What is counted.
        hosts: Names that a Host header may have beside addresses of this machine; None
            for any, where the server is reached from elsewhere.

    Attributes:
        connections: Those that are open; its protocol adds and removes them.
        work: What runs in threads.
    """

    def __init__(
        self,
        served: ServedModel,
        limits: Limits,
        metrics: ServerMetrics,
        hosts: tuple[str, ...] | None = None,
    ) -> None:
        self.work = MicroBatcher(limits)
        self._metrics, self._hosts, self._limits = metrics, hosts, limits
        self.connections = Connections(metrics.dropped)
        self.routes = _routes(served, self.work, limits, metrics)
        self._bodies = BodyLimits(self.routes, limits, self.work.check)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers a request."""
        if scope["type"] == "http":
            await self._metrics.watch(self._answer, scope, receive, send)

    async def _answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        send = limited(send, self.connections, self._limits)
        try:
            self._check(dict(scope["headers"]))
        except HttpError as error:
            await send_error(send, error, receive)
            return
        await self._bodies(scope, receive, send)

    def _check(self, headers: dict[bytes, bytes]) -> None:
        if len(self.connections) > self._limits.connections:
            raise HttpError(
                UNAVAILABLE,
                "R560",
                f"The server holds at most {self._limits.connections:,} connections.",
                "Keep connections open and use them again.",
                headers={"Retry-After": "1"},
            )
        host = headers.get(b"host", b"localhost").decode("latin-1")
        if self._hosts is not None and not _is_own(host, self._hosts):
            # A page elsewhere may have made its own name an address of this machine.
            raise HttpError(
                MISDIRECTED,
                "R568",
                "The Host header must name this machine.",
                "Ask for 127.0.0.1, or start with --allow-host NAME.",
                host,
            )


def _is_own(host: str, hosts: tuple[str, ...]) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower()
    if name == "localhost" or name in hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _routes(
    served: ServedModel, work: MicroBatcher, limits: Limits, metrics: ServerMetrics
) -> FastAPI:
    # The pages of docs come from elsewhere; the OpenAPI page itself is ours.
    app = FastAPI(title="recsys serve", version=__version__, docs_url=None, redoc_url=None)
    app.add_exception_handler(HttpError, _refused)
    app.add_exception_handler(UnreadableInputsError, _unreadable)
    app.add_exception_handler(AnswerTooLargeError, _answer_too_large)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.include_router(predict.router(served, work, limits))
    app.include_router(api.router(served, work))
    app.include_router(page_router())

    @app.get("/healthz", responses=openapi.errors(503), tags=["operation"])
    async def healthz() -> dict[str, int]:
        """Tell whether a version is loaded, and which is the newest."""
        return {"version": served.model().version}

    @app.get("/metrics", response_class=Response, tags=["operation"])
    async def metrics_page() -> Response:
        """Tell Prometheus what happened."""
        return Response(metrics.text(), media_type=_PROMETHEUS)

    return app


def _refused(_request: Any, error: Any) -> Response:
    return Response(error.body(), error.status, error.headers, media_type="application/json")


def _unreadable(_request: Any, error: Any) -> Response:
    return JSONResponse({"error": str(error)}, BAD_REQUEST)


def _answer_too_large(_request: Any, error: Any) -> Response:
    return JSONResponse({"error": str(error)}, UNAVAILABLE, headers={"Retry-After": "1"})


def _invalid(_request: Any, error: Any) -> Response:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _refused(_request, invalid(where, first["msg"], first["input"]))


def _no_route(_request: Any, error: Any) -> Response:
    sentence = f"[R564] {error.detail}. GET /openapi.json lists what can be asked here."
    return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)
