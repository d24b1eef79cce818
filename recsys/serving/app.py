"""The ASGI app: all routes, and the checks before them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import pydantic
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from recsys.errors import RecsysError
from recsys.serving import page_api, rank_api, tf_serving
from recsys.serving.pool import ServerMetrics
from recsys.serving.predictor import Predictor
from recsys.serving.requests import (
    MISDIRECTED,
    TIMEOUT,
    TOO_LARGE,
    TOO_MANY,
    HttpError,
    busy,
    response,
)
from recsys.system.installation import VERSION

_HEADERS = (
    # No scripts from elsewhere and none inside the page: a title can't become a script.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        b" img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")
_PATIENCE = 64
"""Multiple of the maximum size of a body that is read before the connection is closed."""

Lifespan = Callable[[Any], contextlib.AbstractAsyncContextManager[None]]


class Error(pydantic.BaseModel):
    """Why a request failed."""

    error: str


class App:
    """The server as an ASGI app.

    Args:
        predictor: Computes answers.
        metrics: Counts requests.
        hosts: Names that a Host header may have; None: any.
        lifespan: Runs beside the app.
    """

    def __init__(
        self,
        predictor: Predictor,
        metrics: ServerMetrics,
        hosts: tuple[str, ...] | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        self.limits, self._metrics, self._hosts = predictor.limits, metrics, hosts
        self._routes = _routes(predictor, metrics, lifespan)
        self.held_bytes = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers a request; HEAD like GET, without the body."""
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        status, method = 500, scope["method"]
        scope = {**scope, "method": "GET"} if method == "HEAD" else scope

        async def noted(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["path"] == "/" or scope["path"].startswith("/static"):
                    message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        def labels() -> tuple[str, str, str]:
            route = getattr(scope.get("route"), "path", "none")
            return route, method if method in _METHODS else "other", str(status)

        with self._metrics.request(labels):
            await self._answer(scope, receive, noted)

    async def _answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = _Body(self, scope, receive)
        try:
            self._check_host(body.headers.get(b"host", b"localhost").decode("latin-1"))
            async with asyncio.timeout(self.limits.request_s):
                await self._routes(scope, body.receive, send)
        except ClientDisconnect:
            pass
        except HttpError as error:
            await response(error)(scope, receive, send)
        except TimeoutError:
            rule = f"A request must be received and answered within {self.limits.request_s:g} s."
            cure = "Send it faster, or in several requests."
            late = HttpError(TIMEOUT, "R562", rule, cure, f"{body.n_bytes:,} bytes")
            await response(late)(scope, receive, send)
        finally:
            self.held_bytes -= body.held_bytes

    def _check_host(self, host: str) -> None:
        if self._hosts is None:
            return
        with contextlib.suppress(ValueError):
            if urlsplit(f"//{host}").hostname in self._hosts:
                return
        # Another site may have pointed its name at this machine (DNS rebinding).
        rule = "The Host header must name this machine."
        cure = "Ask for 127.0.0.1, or start with --allow-host NAME."
        raise HttpError(MISDIRECTED, "R568", rule, cure, host)


class _Body:
    """Receives a body within the limits of its size and of all bodies together."""

    def __init__(self, app: App, scope: dict[str, Any], receive: Any) -> None:
        self._app, self._receive, self.headers = app, receive, dict(scope["headers"])
        is_page = scope["path"].startswith(page_api.PREFIX)
        self._most = page_api.BODY_BYTES if is_page else app.limits.body_bytes
        self.n_bytes = self.held_bytes = 0

    async def receive(self) -> Any:
        """Returns the next message; raises an HTTPException above a limit."""
        message = {}
        if int(self.headers.get(b"content-length", 0)) > self._most:
            self.n_bytes = self._most + 1
        if self.n_bytes <= self._most or b"expect" not in self.headers:
            message = await self._receive()
        size = len(message.get("body", b""))
        self.n_bytes += size
        if self.n_bytes > self._most:
            # A client that is still sending would not read the error.
            while message.get("more_body") and self.n_bytes < _PATIENCE * self._most:
                message = await self._receive()
                self.n_bytes += len(message.get("body", b""))
            raise HTTPException(TOO_LARGE, f"{self._most:,} bytes")
        self.held_bytes, self._app.held_bytes = self.held_bytes + size, self._app.held_bytes + size
        if self._app.held_bytes > self._app.limits.all_bodies_bytes:
            raise HTTPException(TOO_MANY)
        return message


def _routes(predictor: Predictor, metrics: ServerMetrics, lifespan: Lifespan | None) -> FastAPI:
    app = FastAPI(
        title="recsys serve",
        version=VERSION,
        docs_url=None,  # Its scripts come from elsewhere.
        redoc_url=None,
        lifespan=lifespan,
        responses={"4XX": {"model": Error}, "5XX": {"model": Error}},
    )
    app.add_exception_handler(RecsysError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    # Of several routes of a path, the first says which methods it has.
    for router in (m.router for m in (rank_api, tf_serving, page_api)):
        app.include_router(router(predictor))
    folder = resources.files(__package__) / "static"
    page = (folder / "page.html").read_text("utf-8")
    app.mount("/static", StaticFiles(directory=str(folder)))

    @app.get("/", include_in_schema=False)
    async def root() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/healthz", tags=["operation"])
    async def healthz() -> dict[str, int]:
        """Tell whether a version is loaded, and which is the newest."""
        return {"version": predictor.pool.model().version}

    @app.get("/metrics", response_class=Response, tags=["operation"])
    async def metrics_page() -> Response:
        """Return the metrics for Prometheus."""
        return Response(metrics.text(), media_type=_PROMETHEUS)

    return app


async def _failed(_request: Any, error: Any) -> Response:
    return response(error)


async def _invalid(_request: Any, error: Any) -> Response:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return response(page_api.invalid(where, first["msg"], first["input"]))


async def _refused(_request: Any, error: Any) -> Response:
    if error.status_code == TOO_LARGE:
        rule = f"A body may have at most {error.detail}."
        return response(HttpError(TOO_LARGE, "R557", rule, "Ask in several requests."))
    if error.status_code == TOO_MANY:
        return response(busy("all bodies"))
    text = f"[R564] {error.detail}. GET /openapi.json lists the routes."
    return JSONResponse({"error": text}, error.status_code, headers=error.headers)
