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
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.config import (
    Config,
    ItemsConfig,
    canonical_json,
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
from recsys.formats import count, duration, figure
from recsys.report.evaluated import Evaluated
from recsys.report.runs import INDEX, read_json
from recsys.system.files import commit_text, replacing
from recsys.tasks.judging_side import MODEL

LANDING = "landing"
"""Folder of the spans, each in a folder named by its first day."""
NIGHTS = "nights.jsonl"
"""The finished nights, a line of JSON each."""
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


def replayed(config: Config, out: Path, window: int | None = None) -> Config:
    """Returns the config that reads what a replay writes into `out`, of the newest spans."""
    source = config.data.interactions
    raw = config.model_dump(mode="json") | {"root": str(out / "run"), "name": config.name}
    data, plain = raw["data"], {"format": "parquet", "csv": {}}
    # Schemas of the raw files do not apply to a part of them.
    data["gate"] |= {"schema_dir": None}
    names = {"user": "user_id", "item": "item_id", "timestamp": "timestamp"}
    names |= {n: n for n in ("rating", "weight", "event") if getattr(source.columns, n) is not None}
    names |= {"impression": IMPRESSION.name} if source.has_impressions else {}
    names |= {"position": SHOWN_AT.name} if source.has_positions else {}
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
        rates = source.sampled.rates.values()
        texts = to_ids(pa.array(rates, RATE.type)).to_pylist()
        sampled = {"column": RATE.name, "rates": dict(zip(texts, rates, strict=True))}
    data["interactions"] |= plain | {
        "files": str(out / LANDING / "{YYYY}-{MM}-{DD}" / _EVENTS),
        "spans": window,
        "bad_spans": "set_aside",
        "columns": names,
        "timestamp_unit": "seconds",
        "timestamp_format": None,
        "weight_scale": "linear",
        "explode": None,
        "labels": labels,
        "features": features,
        "sampled": sampled,
    }
    for what, side in config.data.sides.items():
        data[what] |= plain | {"files": str(out / f"{what}.parquet")} | _columns(side)
    return Config.model_validate_json(json.dumps(raw))


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


# --- the simulation


def finished_nights(out: Path, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the finished nights of a simulation, which a killed one goes on from.

    Args:
        out: Folder of the simulation; created if missing.
        plan: Settings of the simulation. Other settings need another folder.

    Raises:
        RecsysError: The folder holds another simulation, or something else.
    """
    out.mkdir(parents=True, exist_ok=True)
    nights, written = out / NIGHTS, out / "plan.json"
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
    return (
        [json.loads(line) for line in nights.read_text("utf-8").splitlines()]
        if nights.exists()
        else []
    )


_LEAST_SPANS = 2


class Simulation:
    """A resumable simulation.

    Args:
        config: Config of the nights; the data must be split by time.
        out: Folder of the simulation. An interrupted simulation in it is resumed.
        by: Period of data per night: day, week or month.
        nights: Number of nights; None: half the periods of the data.
        window: Number of newest spans to read; None: all.
        run_pipeline: Runs the pipeline of a config file; returns the summary of the run.
        report: Called with a sentence on the progress.

    Attributes:
        nights: The finished nights, which `nights.jsonl` has too.
        config: Config of the runs.
        page: The page of all runs, with the nights.

    Raises:
        RecsysError: The data can't be read, or `out` contains another simulation.
    """

    def __init__(
        self,
        config: Config,
        out: Path,
        by: str,
        nights: int | None,
        window: int | None,
        run_pipeline: Callable[[Path], dict[str, Any]],
        report: Callable[[str], None],
    ) -> None:
        if config.data.split != "time":
            rule = "A simulation of nights needs data that are split by time."
            cure = "Set data.interactions.columns.timestamp, and data.split to time."
            raise UsageError("R915", rule, cure, config.data.split)
        self._out, self._run_pipeline, self._report = out, run_pipeline, report
        self._replay = BacktestData.read(config, by, nights)
        if (n_spans := len(self._replay.days)) < (least := nights or _LEAST_SPANS):
            rule = f"The data must cover at least {least} nights."
            cure = "Reduce --nights, use a shorter period (--by day), or add data."
            raise UsageError("R912", rule, cure, f"{n_spans} {by}s")
        self.config = replayed(config, out, window)
        self.page = self.config.root_folder / INDEX
        plan = {
            "config": json.loads(canonical_json(self.config)),
            "options": {"by": by, "nights": nights, "window": window},
            "spans": [day.isoformat() for day in self._replay.days],
            "code": code_fingerprint(self.config),
        }
        self.nights = finished_nights(out, plan)

    def run(self) -> None:
        """Runs the remaining nights."""
        done, n_spans = len(self.nights), len(self._replay.days)
        if self._replay.n_rejected:
            self._report(f"{count(self._replay.n_rejected)} bad rows are not replayed.")
        if done:
            self._report(f"Resuming after night {done} of {n_spans}.")
        for number in range(done, n_spans):
            started, day = time.monotonic(), self._replay.days[number].isoformat()
            self._replay.write_span(self._out, number)
            night = {"span": day, "events": self._replay.events[number].num_rows, **self._run()}
            night["seconds"] = round(time.monotonic() - started, 1)
            self.nights.append(night)
            lines = [json.dumps(night) + "\n" for night in self.nights]
            commit_text("".join(lines), self._out / NIGHTS)
            words = [f"night {number + 1} of {n_spans}", day, night["state"]]
            words += [night["error"] if "error" in night else figure(night["value"])]
            self._report(" · ".join([*words, duration(night["seconds"])]))

    def _run(self) -> dict[str, Any]:
        """Runs the pipeline; a failed run is a result of the night."""
        config = self._out / "config.yaml"
        config.write_text(json.dumps(json.loads(canonical_json(self.config)), indent=1))
        try:
            summary = self._run_pipeline(config)
        except RecsysError as error:
            return {"state": "failed", "error": str(error)}
        metric, model = self.config.bless.metric, summary["model"]
        evaluation = Evaluated(read_json(Path(summary["evaluation"]), "The evaluation"), metric)
        training = read_json(Path(model) / "training.json", "The record of the training")
        last = self.nights[-1] if self.nights else {}
        state = "blessed" if summary["blessed"] else "refused"
        return {
            "state": "nothing new" if model == last.get("model") else state,
            "model": model,
            "value": evaluation.figure(MODEL, metric),
            "interval": evaluation.interval(metric),
            "steps": training["steps"],
            "train_seconds": training["seconds"],
            "base": (training.get("warm_start") or {}).get("base"),
        }
