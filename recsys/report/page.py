"""Rendering of pages: templates, style, and parts that may be missing."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pyarrow as pa
from markupsafe import Markup

from recsys import formats
from recsys.report.evaluated import repeats_in_words
from recsys.report.runs import MissingError

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_FILTERS = (
    "count", "counted", "figure", "score", "share", "size", "duration", "moment", "change",
    "change_span", "span",
)  # fmt: skip
_DAMAGED = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError,
    pa.ArrowException, jinja2.TemplateError,
)  # fmt: skip
"""Errors caused by files with another structure than in docs/folders.md."""


class Part(NamedTuple):
    """One part of a page: its content, or the reason why it is missing."""

    content: Any
    missing: str


def read_part(read: Callable[..., Any], *arguments: Any) -> Part:
    """Returns the result of `read`, or a sentence on why it failed."""
    try:
        return Part(read(*arguments), "")
    except MissingError as missing:
        return Part(None, str(missing))
    except _DAMAGED as error:
        return Part(None, f"This part can't be shown ({type(error).__name__}: {error}).")


def render(template: str, **content: Any) -> str:
    """Returns a page, whose text from data is escaped.

    Its Content-Security-Policy allows the style by its hash, and nothing else
    (https://www.w3.org/TR/CSP3/#framework-directive-source-list).

    Args:
        template: File name in `templates/`.
        **content: Variables of the template.
    """
    style = style_sheet()
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        templates()
        .get_template(template)
        .render(
            style=style,
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none';"
            " form-action 'none'",
            written=f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
            **content,
        )
    )


def style_sheet() -> Markup:
    """Returns the style of every page."""
    text = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - our own file, not data


@functools.cache
def templates() -> jinja2.Environment:
    """Returns the templates, with the filters of `recsys.formats`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {name: getattr(formats, name) for name in _FILTERS}
    environment.filters["repeats_in_words"] = repeats_in_words
    return environment
