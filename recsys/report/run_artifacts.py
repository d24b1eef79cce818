"""The inputs of the report, and the error for missing ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.system import files


class MissingError(Exception):
    """A part of the report has nothing to show; the text gives the reason as a sentence."""


@dataclasses.dataclass(frozen=True)
class Artifacts:
    """Inputs of the report.

    Attributes:
        config: The run's config as JSON.
        dead_letters: Folder of the dead letters of each kind of data.
        data: Data folder.
        model: Model folder.
        evaluation: Evaluation folder.
        bundle: Bundle folder, if one was exported.
        pushed: Served folder, if the bundle was pushed.
        not_pushed: Reason why it was not pushed, if known.
        validation: Folder of the data's validation, if there was one.
        vocabularies: Folder of the vocabularies' diff, if there is one.
        record: Folder of the run's record (`recsys.report.runs`), if it keeps one.
    """

    config: dict[str, Any]
    dead_letters: Mapping[str, Path]
    data: Path
    model: Path
    evaluation: Path
    bundle: Path | None
    pushed: str | None
    not_pushed: str | None = None
    validation: Path | None = None
    vocabularies: Path | None = None
    record: Path | None = None

    @property
    def is_of_run(self) -> bool:
        """Whether they are from a pipeline run, not from `recsys evaluate`."""
        return bool(self.dead_letters)

    @functools.cached_property
    def evaluated(self) -> dict[str, Any]:
        """The content of `evaluation.json`."""
        return read_json(self.evaluation / "evaluation.json", "The evaluation")

    @functools.cached_property
    def training(self) -> dict[str, Any]:
        """The content of `training.json`."""
        return read_json(self.model / "training.json", "The record of the training")

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the bundle."""
        if self.bundle is None:
            raise MissingError("The run exported no bundle.")
        return read_json(self.bundle / "manifest.json", "The bundle's manifest")

    def bless(self) -> dict[str, Any]:
        """Returns `bless` of the config; empty if missing."""
        part = self.config.get("bless")
        return part if isinstance(part, dict) else {}


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Returns the map in the file at `path`.

    Args:
        path: A JSON file.
        what: Name of the content, which starts the error's sentence.

    Raises:
        MissingError: There is no such file, or it holds something else.
    """
    return dict(_read(files.read_json, path, what))


def read_table(path: Path, what: str, columns: list[str] | None = None) -> pa.Table:
    """Returns the Parquet file at `path`, or raises MissingError."""
    return _read(functools.partial(pq.read_table, columns=columns), path, what)


def read_array(path: Path, what: str) -> np.ndarray:
    """Returns the NumPy file at `path`, memory-mapped, or raises MissingError."""
    load = functools.partial(np.load, mmap_mode="r", allow_pickle=False)
    return np.asarray(_read(load, path, what))


def _read(read: Callable[[Path], Any], path: Path, what: str) -> Any:
    try:
        return read(path)
    except FileNotFoundError:
        raise MissingError(f"{what} is missing: there is no {path.name}.") from None
    except (OSError, ValueError, EOFError, pa.ArrowException) as error:
        named = "" if str(error).startswith(path.name) else f"{path.name}: "
        raise MissingError(f"{what} can't be read: {named}{error}.") from None
