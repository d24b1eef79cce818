"""Backtest: replays dated data as the nightly runs would have seen them.

The good rows of a source are typed once, as the pipeline types them, and written again as
Parquet: a folder for each span of the interactions, and the items and users that are known by
then. Rows that the pipeline would reject are left out and counted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.config import (
    Config,
    EvaluateStage,
    InteractionsConfig,
    ItemsConfig,
    PairStage,
    TrainStage,
    canonical_json,
    stage_of,
    write_feature,
)
from recsys.data import entities, interactions
from recsys.data.config import write_event_feature
from recsys.data.features import DateFeature
from recsys.data.labels import FEATURE, IMPRESSION, LABEL, RATE, SHOWN_AT
from recsys.data.sources.pieces import read_all
from recsys.data.sources.values import to_ids
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint
from recsys.formats import count, duration, figure, is_number
from recsys.report.evaluated import Evaluated
from recsys.report.runs import INDEX, RUNS, RunRecord, read_json, read_result
from recsys.runs.index import write_index
from recsys.system.files import commit_folder, commit_text, replacing
from recsys.system.process import run_stage_with_config
from recsys.tasks.judging_side import BLESSED, MODEL

LANDING = "landing"
"""Folder of the spans, each in a folder named by its first day."""
_EVENTS = "events.parquet"

_Parse = Callable[..., tuple[pa.RecordBatch, pa.RecordBatch]]


@dataclasses.dataclass(frozen=True)
class BacktestData:
    """The events by span, and the items and users.

    Attributes:
        days: First day of each span with events, in order.
        events: Typed interactions of each span; the first one holds all earlier ones too.
        sides: Rows of `items` and `users`, if the config has them.
        n_rejected: Rows that the pipeline would reject.
    """

    days: list[dt.date]
    events: list[pa.Table]
    sides: Mapping[str, pa.Table]
    n_rejected: int

    @classmethod
    def read(cls, config: Config, period: str, n_spans: int | None) -> BacktestData:
        """Reads the data of a config.

        Args:
            config: The config; only `data` is used.
            period: `day`, `week` (from Monday) or `month` that one simulated night covers.
            n_spans: Number of periods, the newest ones; None: half of them.
        """
        source = config.data.interactions
        now, parse_interactions = int(time.time()), interactions.parse_interactions
        parse: _Parse = functools.partial(parse_interactions, config=source, now=now)
        columns = interactions.interaction_columns(source)
        schema = interactions.interaction_schema(source)
        events, n_rejected = _read(source, "interactions", columns, parse, schema)
        sides = {}
        for what, side in config.data.sides.items():
            columns, schema = entities.raw_columns(side), entities.example_schema(side)
            schema = schema if side.latest is None else schema.append(entities.LATEST)
            parse = functools.partial(entities.parse_entities, config=side)
            sides[what], n_bad = _read(side, what, columns, parse, schema)
            n_rejected += n_bad
        times = events["timestamp"].cast(pa.timestamp("s"))
        starts = pc.floor_temporal(times, unit=period).cast(pa.date32())
        days = sorted(pc.unique(starts).to_pylist())
        days = days[-(n_spans or -(-len(days) // 2)) :]
        is_of = [(pc.equal if i else pc.less_equal)(starts, day) for i, day in enumerate(days)]
        return cls(days, [events.filter(mask) for mask in is_of], sides, n_rejected)

    def write_span(self, out: Path, number: int) -> None:
        """Writes the span of a night, and the items and users with events up to its end."""
        day = self.days[number].isoformat()
        _write(self.events[number], out / LANDING / day / _EVENTS)
        for what, table in self.sides.items():
            name = "item_id" if what == "items" else "user_id"
            ids = pa.concat_tables(self.events[: number + 1])[name]
            is_known = pc.is_in(table[name], value_set=pc.unique(ids))
            _write(table.filter(is_known), out / f"{what}.parquet")


def replay_config(config: Config, out: Path) -> dict[str, Any]:
    """Returns the part `data` of a config that reads what a replay writes into `out`."""
    data = config.model_dump(mode="json")["data"]
    source = config.data.interactions
    names = {"user": "user_id", "item": "item_id", "timestamp": "timestamp"}
    names |= {n: n for n in ("rating", "weight", "event") if getattr(source.columns, n) is not None}
    plain = {"format": "parquet", "csv": {}}
    data["interactions"] |= plain | {
        "files": str(out / LANDING / "{YYYY}-{MM}-{DD}" / _EVENTS),
        "query": None,
        "columns": names,
        "timestamp_unit": "seconds",
        "timestamp_format": None,
        "weight_scale": "linear",
        "explode": None,
    }
    data["interactions"] |= _typed_keys(source, names)
    for what, side in config.data.sides.items():
        data[what] |= plain | {"files": str(out / f"{what}.parquet")} | _columns(side)
    return data


def _typed_keys(source: InteractionsConfig, names: dict[str, str]) -> dict[str, Any]:
    """Returns the keys on labels, features and what was shown, for typed rows."""
    more = {"impression": source.has_impressions, "position": source.has_positions}
    typed = {"impression": IMPRESSION.name, "position": SHOWN_AT.name}
    labels = {}
    for name, label in source.labels.items():
        values = {} if label.is_amount else {"at_least": 1.0}
        labels[name] = {"column": f"{LABEL}{name}", "given": label.given, **values}
    features = []
    for feature in source.features:
        column = None if feature.column is None else f"{FEATURE}{feature.name}"
        if feature.column == source.columns.timestamp:
            column = names["timestamp"]
        features.append(write_event_feature(feature.model_copy(update={"column": column})))
    sampled = None
    if source.sampled is not None:
        rates = pa.array(source.sampled.rates.values(), RATE.type)
        texts = to_ids(rates).to_pylist()
        sampled = {
            "column": RATE.name,
            "rates": dict(zip(texts, source.sampled.rates.values(), strict=True)),
        }
    return {
        "columns": names | {key: typed[key] for key, is_there in more.items() if is_there},
        "labels": labels,
        "features": features,
        "sampled": sampled,
    }


def _columns(side: entities.EntityConfig) -> dict[str, Any]:
    columns = {"item" if isinstance(side, ItemsConfig) else "user": entities.id_column(side)}
    if isinstance(side, ItemsConfig) and side.columns.title is not None:
        columns["title"] = "title"
    names, features = entities.example_columns(side), []
    for feature in side.features:
        typed: dict[str, Any] = {"column": names.get(feature.name)}
        if isinstance(feature, DateFeature):
            typed["format"] = None  # A date is no text there.
        features.append(write_feature(feature.model_copy(update=typed)))
    latest = None if side.latest is None else entities.LATEST.name
    return {"columns": columns, "features": features, "latest": latest}


def _read(
    source: Any, what: str, columns: list[str], parse: _Parse, schema: pa.Schema
) -> tuple[pa.Table, int]:
    """Returns the good rows of a source, and the number of bad ones."""
    good, n_bad = [], 0
    for file_index, batch in read_all(source, what, columns):
        rows, letters = parse(batch, file_index=file_index)
        good.append(rows.select(schema.names))
        n_bad += letters.num_rows
    return pa.Table.from_batches(good, schema), n_bad


def _write(table: pa.Table, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        pq.write_table(table, temporary)


# --- the models that a night's model is compared with

WARM, COLD, FROZEN = "warm", "cold", "frozen"
ARMS = (WARM, COLD, FROZEN)
"""Started from the last blessed model; trained from scratch; the first night's model."""


def measure_arms(config: Config, out: Path, model: Path, data: Path) -> dict[str, dict[str, Any]]:
    """Trains a model from scratch on the data of a night; measures it and the frozen one.

    Args:
        config: The config of the nights.
        out: Folder of the simulation.
        model: The pipeline's model of the night; the first one is kept as the frozen one.
        data: The data folder that it was trained on.

    Returns:
        `metrics` by arm, and `seconds` and `steps` of the training from scratch.
    """
    folder = out / "arms"
    frozen, cold, scores = (folder / name for name in ("frozen", "cold", "evaluation"))
    folder.mkdir(exist_ok=True)
    if not frozen.exists():
        temporary = frozen.with_name(".frozen.writing")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(model, temporary)
        commit_folder(temporary, frozen)
    for left_over in (cold, scores, folder / "checkpoints"):
        shutil.rmtree(left_over, ignore_errors=True)
    anew = config.model_copy(update={"warm_start": None})
    compare = stage_of(anew, EvaluateStage).of_two_models()
    kind = TrainStage if anew.ranker is None else PairStage
    folders = {"data": data, "model": cold, "blessed": frozen, "out": scores}
    for module, stage, named in (
        ("recsys.stages.train", stage_of(anew, kind), {"data": data, "out": cold}),
        ("recsys.stages.evaluate", compare, folders),
    ):
        words = [word for name, path in named.items() for word in (f"--{name}", str(path))]
        with (folder / f"{module}.log").open("wb") as log:
            run_stage_with_config(module, canonical_json(stage), words, "jax", log)
    evaluation = read_json(scores / "evaluation.json", "The evaluation")
    return {
        COLD: {"metrics": evaluation["metrics"], **training_facts(cold)},
        FROZEN: {"metrics": evaluation[BLESSED]},
    }


def training_facts(model: Path) -> dict[str, Any]:
    """Returns the `seconds` and `steps` of a model's training, and its `base`."""
    training = read_json(model / "training.json", "The record of the training")
    base = (training.get("warm_start") or {}).get("base")
    return {"seconds": training["seconds"], "steps": training["steps"], "base": base}


def add_arms(root: Path, run_id: str, arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds the other arms' metrics to the record of a night's run, and to the page of all runs."""
    folder = root / RUNS / run_id
    result = read_result(folder) or {}
    baselines = {
        **(result.get("baselines") or {}),
        **{n: arm["metrics"] for n, arm in arms.items()},
    }
    RunRecord(folder).end({**result, "baselines": baselines})
    write_index(root)


# --- the journal: a line of JSON per night, so that a killed backtest can be resumed


class BacktestJournal:
    """The finished nights of one simulation.

    Args:
        out: Folder of the simulation; created if missing.
        plan: Settings of the simulation. Other settings need another folder.

    Attributes:
        file: Its file.
        entries: The finished nights, in order.

    Raises:
        RecsysError: The folder holds another simulation, or something else.
    """

    def __init__(self, out: Path, plan: Mapping[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.file, written = out / "nights.jsonl", out / "plan.json"
        if not written.exists() and any(out.iterdir()):
            rule = f"The folder {str(out)!r} must be empty, or contain a simulation to resume."
            received = ", ".join(sorted(path.name for path in out.iterdir())[:5])
            raise RecsysError("R910", rule, "Name another folder with --out.", received)
        text = json.dumps(plan, indent=1, sort_keys=True) + "\n"
        before = json.loads(written.read_text("utf-8")) if written.exists() else json.loads(text)
        keys, requested = before.keys() | plan.keys(), json.loads(text)
        different = sorted(key for key in keys if before.get(key) != requested.get(key))
        if different:
            raise RecsysError(
                "R911",
                f"The folder {str(out)!r} holds a simulation with another {', '.join(different)}.",
                "Use the same options to resume it, or name another folder with --out.",
                {key: requested.get(key) for key in different},
            )
        commit_text(text, written)
        lines = self.file.read_text("utf-8").splitlines() if self.file.exists() else []
        self.entries: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, entry: Mapping[str, Any]) -> None:
        """Records a night, atomically."""
        self.entries.append(dict(entry))
        commit_text("".join(json.dumps(entry) + "\n" for entry in self.entries), self.file)


# --- the arms compared, with intervals

_RESAMPLES = 2_000
_CONFIDENCE = 0.95
_LAST_SHARE = 0.25
_LEAST = 5
"""Number of nights below which there is no interval."""

Entries = Sequence[Mapping[str, Any]]


def summarize(entries: Entries) -> dict[str, Any]:
    """Returns the summary of a simulation.

    A night counts in a comparison if both arms were evaluated, and the warm one was warm.
    Each ratio is of the sums over these nights, with the 95 % interval of the bootstrap over
    nights, which takes them as independent: neighbouring nights share most of their data, so
    it is too narrow rather than too wide.
    """
    states = [entry["state"] for entry in entries]
    both = [n for n in entries if (n.get(WARM) or {}).get("base") and _value(n, COLD) is not None]
    last = both[-max(1, round(len(both) * _LAST_SHARE)) :]
    return {
        "nights": len(entries),
        "states": {state: states.count(state) for state in dict.fromkeys(states)},
        "compared": len(both),
        "warm_over_cold": _ratio(both),
        "warm_over_cold_at_the_end": _ratio(last),
        "steps_of_warm_over_cold": _ratio(both, "steps"),
        "train_seconds_of_warm_over_cold": _ratio(both, "seconds"),
        "warm_over_frozen_at_the_end": _ratio(last, other=FROZEN),
        "seconds": round(sum(entry["seconds"] for entry in entries), 1),
    }


def _value(entry: Mapping[str, Any], arm: str, name: str = "value") -> float | None:
    """Returns a number of an arm in a night; None if it wasn't measured."""
    number = (entry.get(arm) or {}).get(name)
    return number if is_number(number) else None


def _ratio(entries: Entries, name: str = "value", other: str = COLD) -> dict[str, Any] | None:
    """Returns the ratio of the warm arm's sum to another's, and its interval."""
    pairs = [(_value(entry, WARM, name), _value(entry, other, name)) for entry in entries]
    known = np.array([pair for pair in pairs if None not in pair], np.float64).reshape(-1, 2)
    if not len(known) or known[:, 1].sum() <= 0:
        return None
    draws = np.random.default_rng(0).integers(0, len(known), (_RESAMPLES, len(known)))
    sums = known[draws].sum(axis=1)
    ratios = sums[:, 0] / np.maximum(sums[:, 1], np.finfo(np.float64).tiny)
    tail = (1 - _CONFIDENCE) / 2
    ends = [round(float(end), 4) for end in np.quantile(ratios, [tail, 1 - tail])]
    return {
        "ratio": round(float(known[:, 0].sum() / known[:, 1].sum()), 4),
        "interval": ends if len(known) >= _LEAST else None,
        "nights": len(known),
    }


# --- the simulation

_LEAST_SPANS = 2


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
        self.config = _replayed(config, out, options)
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
        done, n_spans = len(self.journal.entries), len(self._replay.days)
        if self._replay.n_rejected:
            self._report(f"{count(self._replay.n_rejected)} bad rows are not replayed.")
        if done:
            self._report(f"Resuming after night {done} of {n_spans}.")
        for number in range(done, n_spans):
            entry = self._run_night(number)
            self.journal.add(entry)
            self._report(_line(entry, number, n_spans))

    def _run_night(self, number: int) -> dict[str, Any]:
        """Writes the data of a night and runs the pipeline on them."""
        started = time.monotonic()
        self._replay.write_span(self._out, number)
        entry = {
            "span": self._replay.days[number].isoformat(),
            "events": self._replay.events[number].num_rows,
            **self._run(),
        }
        return {**entry, "seconds": round(time.monotonic() - started, 1)}

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
        last = self.journal.entries[-1] if self.journal.entries else {}
        if str(model) == last.get("model"):
            return {"state": "nothing new", "model": str(model), WARM: warm}
        entry = {"state": "blessed" if summary["blessed"] else "refused", "model": str(model)}
        if not self._options.arms:
            return {**entry, WARM: warm}
        others = measure_arms(self.config, self._out, model, Path(summary["data"]))
        if summary["night"] is not None:  # A record that can't be written fails no run.
            add_arms(self.config.root_folder, summary["night"]["run"], others)
        values = {
            arm: {"value": facts.pop("metrics")[metric], **facts} for arm, facts in others.items()
        }
        return {**entry, WARM: warm, **values}


def _replayed(config: Config, out: Path, options: Options) -> Config:
    raw = config.model_dump(mode="json")
    raw["data"] = replay_config(config, out)
    raw["data"]["interactions"] |= {"spans": options.window, "bad_spans": "set_aside"}
    # Schemas of the raw files do not apply to a part of them.
    raw["data"]["gate"] |= {"schema_dir": None}
    raw |= {"root": str(out / "run"), "name": config.name}
    raw["warm_start"] = raw["warm_start"] or {}
    return Config.model_validate_json(json.dumps(raw))


def _check(n_spans: int, options: Options) -> None:
    if n_spans < (options.nights or _LEAST_SPANS):
        raise UsageError(
            "R912",
            f"The data must cover at least {options.nights or _LEAST_SPANS} nights.",
            "Reduce --nights, use a shorter period (--by day), or add data.",
            f"{n_spans} {options.by}s",
        )


def _line(entry: dict[str, Any], number: int, n_spans: int) -> str:
    parts = [f"night {number + 1} of {n_spans}", entry["span"], entry["state"]]
    parts += [f"{arm} {figure(entry[arm]['value'])}" for arm in ARMS if entry.get(arm)]
    if entry.get("error"):
        parts.append(entry["error"])
    return " · ".join([*parts, duration(entry["seconds"])])
