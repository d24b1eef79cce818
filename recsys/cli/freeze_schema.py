"""`recsys freeze-schema`: the schemas of the last run, as files to commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recsys.cli.pipeline import call_pipeline
from recsys.cli.stages import config_of


def freeze_schema(
    path: Path | None, overrides: Sequence[str], out: Path, *, force: bool
) -> list[str]:
    """Writes the schemas of the last run into the folder `out`, and returns the files."""
    words = ["--out", str(out.resolve()), *(["--force"] if force else [])]
    return list(call_pipeline("freeze-schema", words, config_of(path, overrides))["files"])
