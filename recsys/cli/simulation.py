"""Backtest simulation: runs the pipeline on dated data, night by night."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from recsys.cli.follow import RunView, follow, new_log
from recsys.cli.stages import pipeline_module
from recsys.cli.terminal import Console
from recsys.config import Config, canonical_json
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint
from recsys.formats import count, duration, figure
from recsys.report.evaluated import MODEL
from recsys.report.index import INDEX
from recsys.runs.backtest import (
    BREAKS,
    BacktestArms,
    BacktestData,
    BacktestJournal,
    draw_broken,
    read_evaluated,
    replay_config,
    training_facts,
)
from recsys.runs.backtest_page import ARMS, WARM, write_page

_LEAST_NIGHTS = 2


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a simulation.

    Attributes:
        by: Period of data per night: day, week or month.
        nights: Number of nights; None: half the periods of the data.
        window: Number of newest spans to read; None: all.
        broken: Number of spans that are broken, and repaired a night later.
        seed: Random seed for the broken spans.
        arms: Whether to evaluate cold and frozen models for comparison.
    """

    by: str
    nights: int | None
    window: int | None
    broken: int
    seed: int
    arms: bool


class Simulation:
    """A resumable simulation.

    Args:
        config: Config of data and training; the data must be split by time.
        out: Folder of the simulation. An interrupted simulation in it is resumed.
        options: Options of the simulation.

    Attributes:
        journal: The finished nights.

    Raises:
        RecsysError: The data can't be read, or `out` contains another simulation.
    """

    def __init__(self, config: Config, out: Path, options: Options) -> None:
        if config.data.split != "time":
            raise UsageError(
                "R915",
                "A simulation of nights needs data that are split by time.",
                "Set data.interactions.columns.timestamp, and data.split to time.",
                config.data.split,
            )
        self._out, self._options, self._talk = out, options, Console(stderr=True)
        self._replay = BacktestData.read(config, options.by, options.nights)
        _check(len(self._replay.days), options)
        self.config = _of_nights(config, out, options)
        self._broken = draw_broken(len(self._replay.days), options.broken, options.seed)
        self._arms = BacktestArms(self.config, out)
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
            self._talk.print(f"{count(self._replay.n_rejected)} bad rows are not replayed.")
        if done:
            self._talk.print(f"Resuming after night {done} of {n_nights}.")
        for number in range(done, n_nights):
            night = self._night(number)
            self.journal.add(night)
            self.write_page()
            self._talk.write_line(_line(night, number, n_nights))

    def write_page(self) -> Path:
        """Writes the page of the finished nights and returns its path."""
        index = self.config.root_folder / INDEX
        metric = self.config.bless.metric
        return write_page(self._out, self.config.name, metric, self.journal.nights, index)

    def _night(self, number: int) -> dict[str, Any]:
        """Writes the data of a night and runs the pipeline on them."""
        started = time.monotonic()
        repaired = [number - 1] if number - 1 in self._broken else []
        for span in repaired:
            self._replay.write_span(self._out, span)
        file = self._replay.write_span(self._out, number)
        if number in self._broken:
            BREAKS[self._broken[number]](file)
        self._replay.write_entities(self._out, number)
        night = {
            "span": self._replay.days[number].isoformat(),
            "events": self._replay.events[number].num_rows,
            "broken": self._broken.get(number),
            "repaired": [self._replay.days[span].isoformat() for span in repaired],
            **self._run(),
        }
        return {**night, "seconds": round(time.monotonic() - started, 1)}

    def _run(self) -> dict[str, Any]:
        """Runs the pipeline and the other arms; a failed run is a result of the night."""
        config = self._out / "config.yaml"
        config.write_text(json.dumps(json.loads(canonical_json(self.config)), indent=1))
        view, log = RunView(Console(quiet=True)), new_log(self.config.root_folder)
        try:
            summary = follow([pipeline_module("run"), str(config)], log, view)
        except RecsysError as error:
            return {"state": "failed", "error": str(error)}
        metric = self.config.bless.metric
        evaluation = read_evaluated(Path(summary["evaluation"]), metric)
        ends = evaluation.interval(metric)
        warm = {"value": evaluation.figure(MODEL, metric), "interval": ends and list(ends)}
        warm |= training_facts(Path(summary["model"]))
        model = Path(summary["model"])
        last = self.journal.nights[-1] if self.journal.nights else {}
        if str(model) == last.get("model"):
            return {"state": "nothing new", "model": str(model), WARM: warm}
        state = "blessed" if summary["blessed"] else "refused"
        self._arms.freeze(model)
        others = self._arms.measure(Path(summary["data"])) if self._options.arms else {}
        return {"state": state, "model": str(model), WARM: warm, **others}


def _of_nights(config: Config, out: Path, options: Options) -> Config:
    """Returns the config of the nightly pipeline."""
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
    if not 0 <= options.broken <= (n_spans - 2) // 2:
        raise UsageError(
            "R913",
            "Each broken span must have an intact span before and after it.",
            f"Set --broken to at most {(n_spans - 2) // 2} for {n_spans} nights.",
            options.broken,
        )


def _line(night: dict[str, Any], number: int, n_nights: int) -> str:
    parts = [f"night {number + 1} of {n_nights}", night["span"], night["state"]]
    parts += [f"{arm} {figure(night[arm]['value'])}" for arm in ARMS if night.get(arm)]
    if night.get("broken"):
        parts.append(f"broken span: {night['broken']}")
    parts += [f"{day} repaired" for day in night["repaired"]]

    if night.get("error"):
        parts.append(night["error"])
    return " · ".join([*parts, duration(night["seconds"])])
