"""Backtest: replays dated data as the nightly runs would have seen them.

The good rows of a source are typed once, as the pipeline types them, and written again as
Parquet: a folder for each span of the interactions, and the items and users that have been
heard of by then. Rows that the pipeline would reject are left out here, and counted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import os
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
    ItemsConfig,
    TrainStage,
    canonical_json,
    stage_of,
    write_feature,
)
from recsys.data.entities import (
    LATEST,
    EntityConfig,
    example_columns,
    example_schema,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.features import DateFeature
from recsys.data.interactions import (
    context_names,
    interaction_columns,
    interaction_schema,
    parse_interactions,
)
from recsys.data.sources.pieces import read_all
from recsys.errors import RecsysError
from recsys.report.evaluated import BLESSED, Evaluated
from recsys.report.run_artifacts import read_json
from recsys.system.commit import commit_folder, commit_text, replacing
from recsys.system.process import run_stage_with_config

LANDING = "landing"
"""Folder of the spans, a folder each with the day that it begins on for its name."""
_EVENTS = "events.parquet"
_PATTERN = "{YYYY}-{MM}-{DD}"

_Parse = Callable[..., tuple[pa.RecordBatch, pa.RecordBatch]]


@dataclasses.dataclass(frozen=True)
class BacktestData:
    """The events by span, and the spans in which users and items first appear.

    Attributes:
        days: First day of each span, in order; the first one holds all that came before it.
        events: Typed interactions of each span, as many as `days`.
        entities: Rows of `items` and `users`, where the config has them.
        n_rejected: Rows that the pipeline would reject.
    """

    days: list[dt.date]
    events: list[pa.Table]
    entities: Mapping[str, pa.Table]
    n_rejected: int

    @classmethod
    def read(cls, config: Config, period: str, n_nights: int | None) -> BacktestData:
        """Reads the data of a config.

        Args:
            config: Whose `data` is read.
            period: `day`, `week` or `month` that one simulated night covers.
            n_nights: Nights; the newest ones, and what came before them is in the span of
                the first one. None: half of the periods that there are.
        """
        source = config.data.interactions
        events, n_rejected = _read(
            source,
            "interactions",
            interaction_columns(source),
            functools.partial(parse_interactions, config=source, now=int(time.time())),
            interaction_schema(source),
        )
        entities = {}
        for what, side in config.data.sides.items():
            parse = functools.partial(parse_entities, config=side)
            columns, schema = raw_columns(side), example_schema(side)
            schema = schema if side.latest is None else schema.append(LATEST)
            entities[what], n_bad = _read(side, what, columns, parse, schema)
            n_rejected += n_bad
        days, spans = _spans(events, period, n_nights)
        return cls(days, spans, entities, n_rejected)

    def write_span(self, out: Path, night: int) -> Path:
        """Writes the span of a night, whole; returns its file."""
        return _write(self.events[night], span_file(out, self.days[night]))

    def write_entities(self, out: Path, night: int) -> None:
        """Writes the items and users that have events up to the end of a night."""
        for what, table in self.entities.items():
            name = "item_id" if what == "items" else "user_id"
            heard = pa.chunked_array([e[name].combine_chunks() for e in self.events[: night + 1]])
            known = pc.is_in(table[name], value_set=pc.unique(heard))
            _write(table.filter(known), out / f"{what}.parquet")


def span_file(out: Path, day: dt.date) -> Path:
    """Returns the file of the span that begins on a day."""
    return out / LANDING / day.isoformat() / _EVENTS


def replay_config(config: Config, out: Path) -> dict[str, Any]:
    """Returns the part `data` of a config that reads what a replay writes into `out`."""
    data = config.model_dump(mode="json")["data"]
    source = config.data.interactions
    names = {"user": "user_id", "item": "item_id", "timestamp": "timestamp"}
    names |= {n: n for n in ("rating", "weight", "event") if getattr(source.columns, n) is not None}
    plain = {"format": "parquet", "csv": {}}
    data["interactions"] |= plain | {
        "files": str(out / LANDING / _PATTERN / _EVENTS),
        "query": None,
        "columns": names,
        "context": context_names(source),
        "timestamp_unit": "seconds",
        "timestamp_format": None,
        "weight_scale": "linear",
        "explode": None,
    }
    for what, side in config.data.sides.items():
        data[what] |= plain | {"files": str(out / f"{what}.parquet")} | _columns(side)
    return data


def _columns(side: EntityConfig) -> dict[str, Any]:
    columns = {"item" if isinstance(side, ItemsConfig) else "user": id_column(side)}
    if isinstance(side, ItemsConfig) and side.columns.title is not None:
        columns["title"] = "title"
    names, features = example_columns(side), []
    for feature in side.features:
        typed: dict[str, Any] = {"column": names[feature.name]}
        if isinstance(feature, DateFeature):
            typed["format"] = None  # A date is no text there.
        features.append(write_feature(feature.model_copy(update=typed)))
    latest = None if side.latest is None else LATEST.name
    return {"columns": columns, "features": features, "latest": latest}


def _read(
    source: Any, what: str, columns: list[str], parse: _Parse, schema: pa.Schema
) -> tuple[pa.Table, int]:
    """Returns the good rows of a source, and how many were bad."""
    good, n_bad = [], 0
    for file_index, batch in read_all(source, what, columns):
        rows, letters = parse(batch, file_index=file_index)
        good.append(rows.select(schema.names))
        n_bad += letters.num_rows
    return pa.Table.from_batches(good, schema), n_bad


def _spans(
    events: pa.Table, period: str, n_nights: int | None
) -> tuple[list[dt.date], list[pa.Table]]:
    """Returns the first days of the spans, and the events of each."""
    times = events["timestamp"].to_numpy()
    ends = (int(times.min()), int(times.max())) if len(times) else (0, 0)
    first, last = (dt.datetime.fromtimestamp(end, dt.UTC).date() for end in ends)
    days = periods(first, last, period)
    days = days[-(n_nights or -(-len(days) // 2)) :]
    at = np.searchsorted(as_seconds(days[1:]), times, side="right")
    return days, [events.filter(pa.array(at == number)) for number in range(len(days))]


def _write(table: pa.Table, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        pq.write_table(table, temporary)
    return file


def periods(first: dt.date, last: dt.date, period: str) -> list[dt.date]:
    """Returns the first day of each period from that of `first` to that of `last`.

    Args:
        first: A day of the first period.
        last: A day of the last one.
        period: `day`, `week`, which begins on Monday, or `month`.
    """
    starts = np.arange(np.datetime64(first, "M"), np.datetime64(last, "M") + 1)
    if period != "month":
        step, before = (7, first.weekday()) if period == "week" else (1, 0)
        start = np.datetime64(first, "D") - before
        starts = np.arange(start, np.datetime64(last, "D") + 1, step)
    days: list[dt.date] = starts.astype("datetime64[D]").tolist()
    return days


def as_seconds(days: Sequence[dt.date]) -> list[int]:
    """Returns the midnights that days begin with [seconds since 1970, UTC]."""
    seconds: list[int] = np.array(days, "datetime64[s]").astype(np.int64).tolist()
    return seconds


# --- broken spans: cut off, of other columns, or full of rubbish


def _truncate(file: Path) -> None:
    """Truncates a file in the middle, like an interrupted upload."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def _rename_column(file: Path) -> None:
    """Renames the column of users, like an upstream schema change."""
    table = pq.read_table(file)
    names = ["uid" if name == "user_id" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), file)


def _spoil_rows(file: Path) -> None:
    """Moves the times of a third of the rows to 1970, like a changed time unit."""
    table = pq.read_table(file)
    times = table["timestamp"].to_numpy().copy()
    times[np.arange(len(times)) % 3 == 0] //= 1_000_000
    at = table.column_names.index("timestamp")
    pq.write_table(table.set_column(at, "timestamp", pa.array(times)), file)


BREAKS: dict[str, Callable[[Path], None]] = {
    "cut off": _truncate,
    "other columns": _rename_column,
    "wrong times": _spoil_rows,
}
"""What can be wrong with a span, and what does it to its file."""


def draw_broken(n_nights: int, n_broken: int, seed: int) -> dict[int, str]:
    """Draws the nights whose spans arrive broken, and how; never the first or last one.

    They lie apart, so that each is repaired before the next.
    """
    rng, kinds = np.random.default_rng(seed), list(BREAKS)
    # Nights that lie apart are any nights, with one more put behind each of them.
    drawn = rng.choice(n_nights - 2 - max(0, n_broken - 1), n_broken, replace=False)
    nights = 1 + np.sort(drawn) + np.arange(n_broken)
    return {int(night): kinds[i % len(kinds)] for i, night in enumerate(nights)}


# --- the systems compared: a model trained from scratch, and one left as it was


class BacktestArms:
    """The two comparison models of a backtest: trained from scratch each night, and frozen.

    Args:
        config: The config of the nights.
        out: Folder of the simulation.
    """

    def __init__(self, config: Config, out: Path) -> None:
        anew = config.model_copy(update={"warm_start": None})
        self._train = stage_of(anew, TrainStage)
        # Nothing is decided: the other model is there to be measured.
        self._evaluate = stage_of(anew, EvaluateStage).of_two_models()
        self._metric = config.bless.metric
        self._folder = out / "arms"
        self.frozen = self._folder / "frozen"
        """Model folder of the first night that gave one."""

    def freeze(self, model: Path) -> None:
        """Keeps a copy of the first model; later ones change nothing."""
        if not self.frozen.exists():
            temporary = self.frozen.with_name(".frozen.writing")
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(model, temporary)
            commit_folder(temporary, self.frozen)

    def measure(self, data: Path) -> dict[str, dict[str, Any]]:
        """Trains a model from scratch on the data of a night and measures it, and the frozen one.

        Args:
            data: The data folder that the pipeline's model of the night was trained on.

        Returns:
            What `training_facts` tells and the deciding metric, by arm.
        """
        model, scores = self._folder / "cold", self._folder / "evaluation"
        for left_over in (model, scores, self._folder / "checkpoints"):
            shutil.rmtree(left_over, ignore_errors=True)
        self._run("recsys.train", self._train, {"data": data, "out": model})
        folders = {"data": data, "model": model, "blessed": self.frozen, "out": scores}
        self._run("recsys.evaluation.stage", self._evaluate, folders)
        evaluation = read_evaluated(scores / "evaluation.json", self._metric)
        cold = {"value": evaluation.figure("model", self._metric), **training_facts(model)}
        frozen = {"value": evaluation.figure(BLESSED, self._metric), "seconds": None, "steps": None}
        return {"cold": cold, "frozen": frozen}

    def _run(self, module: str, stage: Any, folders: dict[str, Path]) -> None:
        self._folder.mkdir(exist_ok=True)
        words = [word for name, folder in folders.items() for word in (f"--{name}", str(folder))]
        with (self._folder / f"{module}.log").open("wb") as log:
            run_stage_with_config(module, canonical_json(stage), words, "jax", log)


def read_evaluated(file: Path, metric: str) -> Evaluated:
    """Returns what an `evaluation.json` holds."""
    return Evaluated(read_json(file, "The evaluation"), metric)


def training_facts(model: Path) -> dict[str, Any]:
    """Returns how long the training of a model took, in `seconds` and `steps`, and its `base`."""
    training = json.loads((model / "training.json").read_text("utf-8"))
    base = (training.get("warm_start") or {}).get("base")
    return {"seconds": training["seconds"], "steps": training["steps"], "base": base}


# --- the journal: a line of JSON a night, so that a killed backtest can be resumed

_PLAN, _NIGHTS = "plan.json", "nights.jsonl"


class BacktestJournal:
    """The nights of one simulation.

    Args:
        out: Folder of the simulation; created if missing.
        plan: Settings of the simulation. Other settings need another folder.

    Raises:
        RecsysError: The folder holds another simulation, or something else.
    """

    def __init__(self, out: Path, plan: Mapping[str, Any]) -> None:
        self.file = out / _NIGHTS
        """Its file."""
        out.mkdir(parents=True, exist_ok=True)
        written = out / _PLAN
        text = json.dumps(plan, indent=1, sort_keys=True) + "\n"
        if written.exists():
            before, requested = json.loads(written.read_text("utf-8")), json.loads(text)
            keys = before.keys() | requested.keys()
            different = sorted(key for key in keys if before.get(key) != requested.get(key))
            if different:
                raise RecsysError(
                    "R911",
                    f"The folder {str(out)!r} holds a simulation with another"
                    f" {', '.join(different)}.",
                    "Use the same options to resume it, or name another folder with --out.",
                    {key: requested.get(key) for key in different},
                )
        elif any(out.iterdir()):
            rule = f"The folder {str(out)!r} must be empty, or contain a simulation to resume."
            cure = "Name another folder with --out."
            received = ", ".join(sorted(path.name for path in out.iterdir())[:5])
            raise RecsysError("R910", rule, cure, received)
        commit_text(text, written)
        self.nights = self._read()
        """The nights that ended, in order."""

    def add(self, night: Mapping[str, Any]) -> None:
        """Records a night; it is synced to disk on return."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(night) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.nights.append(dict(night))

    def _read(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        text = self.file.read_text("utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # Killed while it wrote: that night is replayed.
            commit_text(whole, self.file)
        return [json.loads(line) for line in whole.splitlines()]
