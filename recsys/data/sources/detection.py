"""Detects the format of a file by its name and its first bytes."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import cast

from recsys import registry
from recsys.config import SourceConfig
from recsys.data.sources.csv_source import CsvSource
from recsys.data.sources.jsonl_source import JsonLinesSource
from recsys.data.sources.parquet_source import ParquetSource
from recsys.data.sources.source import Source
from recsys.data.sources.streams import COMPRESSED_NAMES, kind_of_bytes, wide_encoding
from recsys.data.sources.text_source import TextSource
from recsys.data.sources.tfrecord_source import TFRecordSource
from recsys.errors import RecsysError

_BUILT_IN: tuple[type[Source], ...] = (
    CsvSource,
    JsonLinesSource,
    ParquetSource,
    TFRecordSource,
)


def find_source(path: str, start: bytes, config: SourceConfig) -> Source:
    """Returns what reads a file.

    Args:
        path: The file.
        start: Its first bytes, decompressed.
        config: Names its format, or `auto`.

    Raises:
        RecsysError: The config or the name contradicts the bytes.
    """
    is_stated = config.format != "auto"
    if isinstance(config.format, Source):
        source: Source | None = config.format
    else:
        named = _named(config.format) if is_stated else format_of_name(path)
        source = named.from_config(config) if named else None
    if source is None or isinstance(source, TextSource):
        encoding = source.encoding if source else config.csv.encoding
        start = _narrowed(path, start, encoding) if _is_wide(encoding) else start
    source = source or _format_of_bytes(start).from_config(config)
    other = _binary_format(start)
    if source.fits(start) and other in (None, type(source)):
        return source
    kind = f"a {other.title} file" if other else kind_of_bytes(start)
    error = source.explain(path, start) if isinstance(source, TextSource) else None
    raise error or RecsysError(
        "R204",
        f"{path!r} must be {source.title}, as {'the config' if is_stated else 'its name'} says.",
        _cure(kind, start, is_stated=is_stated),
        kind or "other text",
    )


def format_of_name(path: str) -> type[Source] | None:
    """Returns the format that a file's name says; `None` if it says none."""
    name = Path(path.lower())
    if name.suffix in COMPRESSED_NAMES:
        name = name.with_suffix("")
    return next((cls for cls in _classes() if name.suffix in cls.extensions), None)


def _format_of_bytes(start: bytes) -> type[Source]:
    return next((cls for cls in _classes() if cls.detects(start)), None) or CsvSource


def _binary_format(start: bytes) -> type[Source] | None:
    """Returns the format that is no text whose mark bytes begin with."""
    binary = (cls for cls in _classes() if not issubclass(cls, TextSource))
    return next((cls for cls in binary if cls.detects(start)), None)


def _cure(kind: str | None, start: bytes, *, is_stated: bool) -> str:
    if kind == "UTF-16 text":
        return f"Set csv.encoding: {wide_encoding(start)} beside its files in the config."
    if is_stated:
        return "Correct format in the config, or name another file."
    return "Give it the extension of its format, set format in the config, or convert it."


def _named(name: str) -> type[Source]:
    return cast(type[Source], registry.get("source", name))


def _classes() -> list[type[Source]]:
    """Returns the sources that are registered: ours, then those of plugins."""
    plugins = map(_named, registry.names("source"))
    return list(dict.fromkeys([*_BUILT_IN, *plugins]))


# --- text of several bytes a character


def _is_wide(encoding: str) -> bool:
    return encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32"))


def _narrowed(path: str, start: bytes, encoding: str) -> bytes:
    """Returns the start of a text of several bytes a character as UTF-8."""
    try:
        text = codecs.getincrementaldecoder(encoding)("replace").decode(start)
    except UnicodeError:  # Of `utf-16` and `utf-32`, which need a mark.
        name = wide_encoding(start)
        cure = f"Set csv.encoding: {name}." if name else "Set csv.encoding to what it is in."
        raise RecsysError(
            "R204",
            f"{path!r} must begin with a byte order mark, as csv.encoding: {encoding} says.",
            cure,
            start[:20],
        ) from None
    return text.encode("utf-8", "replace")
