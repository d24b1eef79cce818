"""The whole ingestion without TFX: from raw files to a data folder.

Steps and result are the same as in the pipeline. TensorFlow Transform computes the features, as
there, so that an exported model parses raw values in the same way.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from recsys.config import Config, DataConfig
from recsys.config.load import load_config
from recsys.data import event_features
from recsys.data.dataset import FACTS, GRAPHS, Data, seal_inputs, verify_inputs
from recsys.data.dead_letters import Tally, check_rejected
from recsys.data.ingest.engines import check_engine, engine_args, transform_args
from recsys.data.ingest.entity_rows import (
    SPLIT,
    Transformed,
    plan_entities,
    summarize_entities,
    write_entities,
)
from recsys.data.ingest.event_values import learn_event_features
from recsys.data.ingest.ingestion import Ingestion, InteractionSource
from recsys.data.ingest.landed import LANDED_FOLDER, pin_sources
from recsys.data.ingest.read_rows import read_sources
from recsys.data.ingest.statistics import write_statistics
from recsys.data.ingest.store_writer import build_store, make_vocabularies
from recsys.data.ingest.tasks import with_local_runner
from recsys.errors import UsageError
from recsys.fingerprint import code_fingerprint
from recsys.system.events import ENVIRONMENT_VARIABLE, emit, shown_events
from recsys.system.files import scratch_folder
from recsys.system.installation import extra_needed
from recsys.system.process import release_freed

if TYPE_CHECKING:
    import apache_beam as beam


def ingest(
    config: str | Path | Config | DataConfig,
    out: str | Path,
    *,
    previous: str | Path | Data | None = None,
    cache: str | Path | None = None,
    beam_args: Sequence[str] | None = None,
    progress: bool = True,
) -> Data:
    """Reads raw files into a data folder for training, evaluation and export.

    Drops invalid rows and duplicates, splits the events, assigns rows to users and items, and
    computes the features. The result equals the pipeline's.

    Args:
        config: Path of a YAML file, a whole config, or its part `data`.
        out: Folder to write atomically; an earlier result is replaced.
        previous: Earlier data, whose users and items keep their rows.
        cache: Folder of a content cache, so that unchanged files are not read again; None: no
            cache.
        beam_args: Options of the Beam pipeline, such as `--runner=…`; None: those of the config's
            engine. Without any, threads of this process do the work.
        progress: Whether to show a progress bar.

    Returns:
        The opened data folder.

    Raises:
        RecsysError: A file can't be read, too many rows are rejected, or the positives
            can't be split.
        UsageError: `out` holds something else.
    """
    whole = load_config(Path(config)) if isinstance(config, str | Path) else config
    data = whole.data if isinstance(whole, Config) else whole
    final = Path(out)
    if beam_args is None:
        beam_args = _engine(whole, final.parent) if isinstance(whole, Config) else ()
    if final.exists() and not (final / FACTS).is_file() and any(final.iterdir()):
        raise UsageError(
            "R223",
            f"{str(final)!r} must be new, empty, or an earlier result of ingest.",
            "Name another folder.",
            sorted(path.name for path in final.iterdir())[:5],
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    replaced = final.with_name(f".{final.name}-replaced")
    _restore(replaced, final)
    previous = previous.folder if isinstance(previous, Data) else previous
    with scratch_folder(final.parent, f".{final.name}-") as scratch:
        made = scratch / final.name
        landed = made if cache is None else Path(cache)
        data = pin_sources(data, landed.with_name(LANDED_FOLDER))
        ingestion = _FolderIngestion(data, made, beam_args)
        with _shown(progress):
            ingestion.run(*(None if path is None else Path(path) for path in (previous, cache)))
        try:
            if final.exists():
                final.rename(replaced)
            made.rename(final)
        finally:
            _restore(replaced, final)
    return Data(final)


def _engine(config: Config, folder: Path) -> list[str]:
    """Returns the options of the config's engine, after a check of it."""
    check_engine(config.beam, folder, config.data)
    return engine_args(config.beam, folder, config.data)


def _restore(replaced: Path, final: Path) -> None:
    """Restores the earlier result if the new one isn't there, as after a kill; else removes it."""
    if replaced.exists() and not final.exists():
        replaced.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)


class _FolderIngestion:
    """The ingestion into one data folder.

    Args:
        data: Config of the data.
        folder: Folder to write.
        beam_args: Options of the Beam pipelines; none: threads of this process do the work.
    """

    def __init__(self, data: DataConfig, folder: Path, beam_args: Sequence[str]) -> None:
        self._data, self._folder, self._args = data, folder, beam_args
        self._work = folder / "work"
        self._facts: dict[str, Any] = {}

    def run(self, previous: Path | None, cache: Path | None) -> None:
        """Reads everything and writes the data folder."""
        if previous is not None:
            verify_inputs(previous)
        self._work.mkdir(parents=True)
        source, interactions = InteractionSource.of(self._data), self._work / "interactions"
        entities = {what: self._work / what for what in self._data.sides}
        if any(config.features for config in self._data.sides.values()):
            # TensorFlow takes seconds to load, and Arrow reads files meanwhile.
            threading.Thread(target=_load_transform, daemon=True).start()
        self._read(source, interactions, entities, cache)
        tokens = self._features(entities)
        vocabularies = self._folder / "vocabulary"
        vocabularies.mkdir()
        cut = self._facts["interactions"]["cut"]
        with _step("VocabularyGen", "ids get rows"):
            make_vocabularies(
                interactions,
                cut,
                {what: folder / f"Split-{SPLIT}" for what, folder in entities.items()},
                previous and previous / "vocabulary",
                vocabularies,
                self._data.vocabulary,
                source.rule,
            )
        data, learned = self._data, self._folder / event_features.FOLDER
        earlier = previous and previous / event_features.FOLDER
        learn_event_features(interactions, data.interactions, earlier, learned)
        build_store(
            interactions,
            vocabularies,
            cut,
            self._folder / "store",
            source.rule,
            event_features.load_event_features(learned),
            data.interactions.label_after_s,
        )
        write_entities(self._folder, data.items, data.users, entities.get("items"), tokens)
        write_statistics(self._folder, data.interactions.label_after_s)
        seal_inputs(self._folder)
        (self._folder / FACTS).write_text(json.dumps(self._facts, indent=1) + "\n")
        shutil.rmtree(self._work)

    def _read(
        self,
        source: InteractionSource,
        out: Path,
        entities: Mapping[str, Path],
        cache: Path | None,
    ) -> None:
        """Reads interactions, items and users in one job."""
        like, code = self._pipeline(), "" if cache is None else code_fingerprint(self._data)
        letters = {what: self._letters(what) for what in ("interactions", *entities)}
        sides, forget = self._data.sides, self._data.forget
        with Ingestion(source, out, letters["interactions"], like, cache, code, False) as run:
            plans = [
                plan_entities(what, sides[what], folder, letters[what], forget)
                for what, folder in entities.items()
            ]
            read = read_sources(like, [*plans, *run.plans], run.work)
            self._check("interactions", letters, run.finish(read[len(plans) :]))
        for (what, config), facts in zip(sides.items(), read, strict=False):
            counts = summarize_entities(what, config, letters[what], facts)
            self._check(what, letters, counts)

    def _pipeline(self) -> beam.Pipeline | None:
        """Returns a pipeline with the options of the config, if it has other than the default."""
        if not self._args:
            return None
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        return beam.Pipeline(options=PipelineOptions(with_local_runner(self._args)))

    def _features(self, entities: Mapping[str, Path]) -> dict[str, Transformed]:
        """Computes the features of items and users."""
        made = {
            what: Transformed(self._work / f"{what}-tokens", self._folder / GRAPHS / what)
            for what, config in self._data.sides.items()
            if config.features
        }
        if not made:
            return made
        rule = f"Features (data.{min(made)}.features) are made by TensorFlow Transform."
        with extra_needed("pipeline", "R252", rule):
            from recsys.data.ingest.transform import Side, transform
        sides = [
            Side(self._data.sides[what], entities[what] / f"Split-{SPLIT}", *folders)
            for what, folders in made.items()
        ]
        with _step("Features", "tokens are made"):
            transform(sides, transform_args(self._args))
        release_freed()
        return made

    def _letters(self, what: str) -> Path:
        folder = self._folder / "dead_letters" / what
        folder.mkdir(parents=True)
        return folder

    def _check(self, what: str, letters: Mapping[str, Path], counts: Tally) -> None:
        """Stores the counts; raises an error if too many rows were rejected."""
        self._facts[what] = counts
        limit = self._data.gate.max_rejected_share
        for remark in check_rejected(what, letters[what], limit):
            emit("note", step=what.capitalize(), text=remark)


def _load_transform() -> None:
    # TensorFlow's messages about GPUs are irrelevant here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with suppress(ImportError):  # Reported when it is used.
        importlib.import_module("recsys.data.ingest.transform")


@contextmanager
def _step(name: str, text: str) -> Iterator[None]:
    emit("progress", step=name, done=0, total=1, text=text)
    yield
    emit("progress", step=name, done=1, total=1, text=text)


@contextmanager
def _shown(progress: bool) -> Iterator[None]:
    """Shows the progress of steps, which workers of all processes report, unless a parent does."""
    if not progress or os.environ.get(ENVIRONMENT_VARIABLE):
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    tasks: dict[str, Any] = {}

    def show(event: dict[str, Any]) -> None:
        if event["kind"] == "note":
            bar.console.print(f"{event['step']}: {event['text']}", markup=False, highlight=False)
        if event["kind"] == "progress":
            step, text = event["step"], event["text"]
            if step not in tasks:
                tasks[step] = bar.add_task(step, text="")
            bar.update(tasks[step], completed=event["done"], total=event["total"], text=text)

    with Progress(*columns, TimeElapsedColumn()) as bar, shown_events(show):
        yield
