"""Rendering of pages: templates, style, and parts that may be missing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
from markupsafe import Markup

from recsys.report.artifacts import MissingError

_FOLDER = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a page: its content, or why it has none."""

    content: Any
    missing: str


def read_part(read: Callable[[], Any]) -> Part:
    """Returns what `read` returns, or why it couldn't, in words."""
    try:
        return Part(read(), "")
    except MissingError as missing:
        return Part(None, str(missing))
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        OSError,
        pa.ArrowException,
    ) as error:
        # Files of another shape than docs/architecture.md gives them.
        return Part(None, f"This part can't be shown ({type(error).__name__}: {error}).")


def render(template: str, **content: Any) -> str:
    """Returns a page, whose text from data is escaped.

    Args:
        template: File name in `templates/`.
        **content: What the template needs.
    """
    now = dt.datetime.now(dt.UTC)
    style = style_sheet()
    return (
        _environment()
        .get_template(template)
        .render(
            style=style,
            policy=_policy(style),
            written=f"{now:%Y-%m-%d %H:%M} UTC",
            **content,
        )
    )


def _policy(style: str) -> str:
    """Returns a Content-Security-Policy that allows `style` by its hash, and nothing else.

    Source: https://www.w3.org/TR/CSP3/#framework-directive-source-list
    """
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def style_sheet() -> Markup:
    """Returns the style of every page."""
    text = (_FOLDER / "templates" / "page.css").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - our own file, not data


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
