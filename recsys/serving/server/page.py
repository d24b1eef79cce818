"""The page for people: three files, sent as they are."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter
from fastapi.responses import Response

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


def router() -> APIRouter:
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
