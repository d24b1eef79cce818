"""The files of a finished run: its record, and the folders that its report reads.

The record is `<root>/runs/<run id>/`. `steps.jsonl` has a line when the run starts and one for each
step that ended, so that a killed run leaves what it did; `run.json` is there, whole, once the run
has ended. Nothing else depends on the record: if it can't be written or read, a run reports that
and continues.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.formats import count, is_number
from recsys.system import files
from recsys.system.files import commit_text

RUNS = "runs"
INDEX = "index.html"
"""The page of all runs, in the root."""
STEPS = "steps.jsonl"
RESULT = "run.json"
FORMAT = 1


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

    @property
    def has_labels(self) -> bool:
        """Whether the evaluation is of labels; False if it is missing."""
        try:
            return "labels" in self.evaluated
        except MissingError:
            return False

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


# --- the record


class RunRecord:
    """Writes the record of one run. Every method may raise OSError.

    Args:
        folder: Folder of the run; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, name: str, steps: Sequence[str], started: float) -> None:
        """Writes that the run has started.

        Args:
            name: Name of the pipeline.
            steps: Names of its steps, in order.
            started: When [seconds since 1970].
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._append({"name": name, "steps": list(steps), "started": started})

    def step(self, step: str, state: str, reason: str, seconds: float, started: float) -> None:
        """Writes that a step has ended.

        Args:
            step: Its name.
            state: `ran`, `cached` or `failed`.
            reason: Reason, a sentence.
            seconds: Duration [s].
            started: Start [seconds since 1970].
        """
        line = {"step": step, "state": state, "reason": reason}
        self._append({**line, "seconds": round(seconds, 3), "started": started})

    def end(self, result: Mapping[str, Any]) -> None:
        """Writes the result of the run: strict JSON, atomically.

        Raises:
            ValueError: `result` has NaN or infinity.
        """
        text = json.dumps({"format": FORMAT, **result}, indent=1, allow_nan=False)
        commit_text(text + "\n", self.folder / RESULT)

    def _append(self, line: Mapping[str, Any]) -> None:
        with (self.folder / STEPS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that ended.

    Attributes:
        name: Its name.
        state: `ran`, `cached` or `failed`.
        reason: Why, a sentence.
        seconds: How long it took [s].
    """

    name: str
    state: str
    reason: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class RecordedSteps:
    """The content of the `steps.jsonl` of a run.

    Attributes:
        name: Name of the pipeline.
        planned: Names of its steps, in order.
        started: When it started [seconds since 1970]; None where that isn't known.
        steps: The steps that ended.
        n_damaged: Lines that could not be read.
    """

    name: str
    planned: list[str]
    started: float | None
    steps: list[Step]
    n_damaged: int

    @property
    def seconds(self) -> float:
        """How long the steps took together [s]."""
        return sum(step.seconds for step in self.steps)

    @property
    def step(self) -> str | None:
        """The step after the last one that ended; None where all did."""
        return next(iter(self.planned[len(self.steps) :]), None)

    def progress(self) -> str:
        """Returns the progress of the run, such as `in Trainer after 2 of 5 steps`."""
        where = f"in {self.step} " if self.step else ""
        return f"{where}after {len(self.steps)} of {len(self.planned)} steps"


def run_folders(root: Path) -> list[Path]:
    """Returns the folders of the runs under a root, the newest first."""
    folders = [path for path in (root / RUNS).glob("*") if path.is_dir()]
    return sorted(folders, key=lambda path: path.name, reverse=True)


def read_steps(folder: Path) -> RecordedSteps:
    """Returns what the run in `folder` did so far.

    Raises:
        MissingError: There is no record of steps, or it can't be read.
    """
    try:
        text = (folder / STEPS).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise MissingError("The run has no record of its steps.") from None
    except OSError as error:
        raise MissingError(f"The record of the steps can't be read: {error}.") from None
    lines = list(_parsed(text))
    head = next((line for line in lines if "step" not in line), {})
    return RecordedSteps(
        name=str(head.get("name") or ""),
        planned=[str(name) for name in head.get("steps") or []],
        started=head.get("started"),
        steps=[_step(line) for line in lines if "step" in line],
        n_damaged=len(text.splitlines()) - len(lines),
    )


def read_result(folder: Path) -> dict[str, Any] | None:
    """Returns `run.json` of the run in `folder`; None for a run that didn't end.

    Raises:
        MissingError: The file is damaged, or of a format that this version doesn't know.
    """
    if not (folder / RESULT).exists():
        return None
    result = read_json(folder / RESULT, "The result of the run")
    if result.get("format") != FORMAT:
        raise MissingError(f"{RESULT} has format {result.get('format')!r}, not {FORMAT}.")
    return result


def state_of(result: Mapping[str, Any]) -> str:
    """Returns `blessed`, `refused`, `failed`, `interrupted`, `running` or `no verdict`."""
    state, blessed = result.get("state"), result.get("blessed")
    if state in ("interrupted", "killed", "stopped"):
        return "interrupted"
    if state == "running":
        return "running"
    if result.get("error") or state == "failed":
        return "failed"
    if not isinstance(blessed, bool):
        return "no verdict"
    return "blessed" if blessed else "refused"


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    """Yields the lines that hold a map; a killed run may leave half a line."""
    for line in text.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content


def _step(line: Mapping[str, Any]) -> Step:
    seconds = line.get("seconds")
    return Step(
        name=str(line["step"]),
        state=str(line.get("state") or ""),
        reason=str(line.get("reason") or ""),
        seconds=float(seconds) if is_number(seconds) else 0.0,
    )


# --- spans

_KINDS = ("new", "late", "empty", "set_aside", "missing")
_SHOWN_NAMES = 2


def spans_of(spans: Any) -> dict[str, list[str]] | None:
    """Returns the names of the notable spans by kind; None without spans.

    Args:
        spans: The value of `spans` in `run.json`, see docs/report.md.
    """
    if not isinstance(spans, list):
        return None
    by_kind: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for span in spans:
        for kind, names in by_kind.items():
            if span.get(kind) is True or span.get("state") == kind:
                names.append(str(span.get("name")))
    return by_kind


def spans_in_words(spans: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Returns a phrase for each notable kind of spans."""
    words = []
    for kind, names in (spans or {}).items():
        if kind == "new" and len(names) > 1:
            words.append(f"{count(len(names))} new")
        elif names:
            more = len(names) - _SHOWN_NAMES
            tail = f" and {count(more)} more" if more > 0 else ""
            words.append(f"{kind.replace('_', ' ')}: {', '.join(names[:_SHOWN_NAMES])}{tail}")
    return words
