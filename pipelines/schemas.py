"""Committed schemas, pinned by their content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from recsys.errors import RecsysError


def pin_schema(schema: Path, root: Path) -> Path:
    """Copies a schema to a path that changes with its content, and returns that.

    The cache key of TFX's ImportSchemaGen has the path of the file, not what is in
    it: with the file itself an edited schema would never be read.

    Args:
        schema: A TFDV schema as text.
        root: Folder of everything that a run writes.

    Raises:
        RecsysError: The file can't be read.
    """
    try:
        content = schema.read_bytes()
    except OSError as error:
        raise RecsysError(
            "R243",
            f"{str(schema)!r} must be a committed TFDV schema.",
            "Write it with `recsys freeze-schema`, correct data.gate.schema_dir, or remove that"
            " key to infer the schema from the data.",
            error.strerror,
        ) from None
    pinned = root / "schemas" / hashlib.sha256(content).hexdigest()[:16] / schema.name
    pinned.parent.mkdir(parents=True, exist_ok=True)
    pinned.write_bytes(content)
    return pinned
