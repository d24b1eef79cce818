"""Backtest simulation: runs the pipeline on dated data, night by night."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recsys.config import Config, canonical_json
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint
from recsys.formats import count, duration, figure
from recsys.report.evaluated import Evaluated
from recsys.report.runs import INDEX, read_json
from recsys.runs.backtest import (
    ARMS,
    WARM,
    BacktestData,
    BacktestJournal,
    add_arms,
    measure_arms,
    replay_config,
    training_facts,
)
from recsys.tasks.judging_side import MODEL

_LEAST_NIGHTS = 2


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a simulation.

    Attributes:
        by: Period of data per night: day, week or month.
        nights: Number of nights; None: half the periods of the data.
        window: Number of newest spans to read; None: all.
        arms: Whether to evaluate cold and frozen models for comparison.
    """

    by: str
    nights: int | None
    window: int | None
    arms: bool


class Simulation:
    """A resumable simulation.

    Args:
        config: Config of data and training; the data must be split by time.
        out: Folder of the simulation. An interrupted simulation in it is resumed.
        options: Options of the simulation.
        run_pipeline: Runs the pipeline of a config file; returns the summary of the run.
        report: Called with a sentence on the progress.

    Attributes:
        journal: The finished nights.
        page: The page of all runs, with the nights.

    Raises:
        RecsysError: The data can't be read, or `out` contains another simulation.
    """

    def __init__(
        self,
        config: Config,
        out: Path,
        options: Options,
        run_pipeline: Callable[[Path], dict[str, Any]],
        report: Callable[[str], None],
    ) -> None:
        if config.data.split != "time":
            rule = "A simulation of nights needs data that are split by time."
            cure = "Set data.interactions.columns.timestamp, and data.split to time."
            raise UsageError("R915", rule, cure, config.data.split)
        self._out, self._options = out, options
        self._run_pipeline, self._report = run_pipeline, report
        self._replay = BacktestData.read(config, options.by, options.nights)
        _check(len(self._replay.days), options)
        self.config = _of_nights(config, out, options)
        self.page = self.config.root_folder / INDEX
        plan = {
            "config": json.loads(canonical_json(self.config)),
            "options": dataclasses.asdict(options),
            "spans": [day.isoformat() for day in self._replay.days],
            "code": code_fingerprint(self.config),
        }
        self.journal = BacktestJournal(out, plan)

    def run(self) -> None:
        """Runs the remaining nights."""
        done, n_nights = len(self.journal.nights), len(self._replay.days)
        if self._replay.n_rejected:
            self._report(f"{count(self._replay.n_rejected)} bad rows are not replayed.")
        if done:
            self._report(f"Resuming after night {done} of {n_nights}.")
        for number in range(done, n_nights):
            night = self._night(number)
            self.journal.add(night)
            self._report(_line(night, number, n_nights))

    def _night(self, number: int) -> dict[str, Any]:
        """Writes the data of a night and runs the pipeline on them."""
        started = time.monotonic()
        self._replay.write_night(self._out, number)
        night = {
            "span": self._replay.days[number].isoformat(),
            "events": self._replay.events[number].num_rows,
            **self._run(),
        }
        return {**night, "seconds": round(time.monotonic() - started, 1)}

    def _run(self) -> dict[str, Any]:
        """Runs the pipeline and the other arms; a failed run is a result of the night."""
        config = self._out / "config.yaml"
        config.write_text(json.dumps(json.loads(canonical_json(self.config)), indent=1))
        try:
            summary = self._run_pipeline(config)
        except RecsysError as error:
            return {"state": "failed", "error": str(error)}
        metric, model = self.config.bless.metric, Path(summary["model"])
        evaluation = Evaluated(read_json(Path(summary["evaluation"]), "The evaluation"), metric)
        warm = {"value": evaluation.figure(MODEL, metric), **training_facts(model)}
        warm["interval"] = evaluation.interval(metric)
        last = self.journal.nights[-1] if self.journal.nights else {}
        if str(model) == last.get("model"):
            return {"state": "nothing new", "model": str(model), WARM: warm}
        night = {"state": "blessed" if summary["blessed"] else "refused", "model": str(model)}
        if not self._options.arms:
            return {**night, WARM: warm}
        others = measure_arms(self.config, self._out, model, Path(summary["data"]))
        if summary["night"] is not None:  # A record that can't be written fails no run.
            add_arms(self.config.root_folder, summary["night"]["run"], others)
        values = {
            arm: {"value": facts.pop("metrics")[metric], **facts} for arm, facts in others.items()
        }
        return {**night, WARM: warm, **values}


def _of_nights(config: Config, out: Path, options: Options) -> Config:
    raw = config.model_dump(mode="json")
    raw["data"] = replay_config(config, out)
    raw["data"]["interactions"] |= {"spans": options.window, "bad_spans": "set_aside"}
    # Schemas of the raw files do not apply to a part of them.
    raw["data"]["gate"] |= {"schema_dir": None}
    raw |= {"root": str(out / "run"), "name": config.name}
    raw["warm_start"] = raw["warm_start"] or {}
    return Config.model_validate_json(json.dumps(raw))


def _check(n_spans: int, options: Options) -> None:
    if n_spans < (options.nights or _LEAST_NIGHTS):
        raise UsageError(
            "R912",
            f"The data must cover at least {options.nights or _LEAST_NIGHTS} nights.",
            "Reduce --nights, use a shorter period (--by day), or add data.",
            f"{n_spans} {options.by}s",
        )


def _line(night: dict[str, Any], number: int, n_nights: int) -> str:
    parts = [f"night {number + 1} of {n_nights}", night["span"], night["state"]]
    parts += [f"{arm} {figure(night[arm]['value'])}" for arm in ARMS if night.get(arm)]
    if night.get("error"):
        parts.append(night["error"])
    return " · ".join([*parts, duration(night["seconds"])])
