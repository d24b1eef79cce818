"""Simulated nights: what arrives when, what comes broken, and what the numbers say."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from recsys.config import Config
from recsys.data.interactions import interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.errors import RecsysError
from recsys.runs.backtest import (
    LANDING,
    NIGHTS,
    BacktestData,
    finished_nights,
    replayed,
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Ratings of 2020 with a nested item column and one bad row; a catalogue with features."""
    folder = tmp_path_factory.mktemp("raw")
    rng = np.random.default_rng(0)
    start = 1_577_836_800  # 2020-01-01
    rows = [
        {
            "who": f"u{rng.integers(20)}",
            "what": {"id": f"i{rng.integers(30)}"},
            "at": dt.datetime.fromtimestamp(start + int(t), dt.UTC).isoformat(),
            "stars": float(rng.integers(1, 6)),
            "page": str(rng.integers(9)),
            "seconds": float(rng.integers(9)),
        }
        for t in np.sort(rng.integers(0, 366 * 86_400, 500))
    ]
    rows[7]["at"] = "yesterday"
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"i{n};Item {n};a|b;{n}.5" for n in range(40)]
    (folder / "items.csv").write_text("id;name;tags;price\n" + "\n".join(lines) + "\n")
    data = {
        "interactions": {
            "files": str(folder / "events.jsonl"),
            "columns": {"user": "who", "item": "what.id", "timestamp": "at", "rating": "stars"},
            "timestamp_unit": "iso8601",
            "positive_at_least": 4.0,
            "labels": {
                "like": {"column": "stars", "at_least": 4},
                "dwell": {"column": "seconds", "given": "like"},
            },
            "sampled": {"column": "stars", "rates": {"1": 0.1, "2": 0.3}},
            "features": [
                {"name": "page", "column": "page", "kind": "category"},
                {"name": "hour", "column": "at", "kind": "hour"},
                {"name": "gap", "kind": "gap"},
            ],
        },
        "items": {
            "files": str(folder / "items.csv"),
            "csv": {"delimiter": ";"},
            "columns": {"item": "id", "title": "name"},
            "features": [
                {"name": "tags", "column": "tags", "kind": "categories"},
                {"name": "price", "column": "price", "kind": "number"},
            ],
        },
    }
    raw = {"name": "nights", "root": str(folder / "run"), "data": data}
    return Config.model_validate_json(json.dumps(raw))


def test_every_good_row_arrives_once_in_the_span_of_its_time(
    config: Config, tmp_path: Path
) -> None:
    replay = BacktestData.read(config, "month", 4)
    assert [day.isoformat() for day in replay.days] == [f"2020-{m:02}-01" for m in (9, 10, 11, 12)]
    assert replay.n_rejected == 1
    raw = json.loads(
        "[" + ",".join(Path(str(config.data.interactions.files)).read_text().splitlines()) + "]"
    )
    wanted: dict[str, list[tuple[str, str, int]]] = {}
    for row in raw:
        if row["at"] != "yesterday":
            at = dt.datetime.fromisoformat(row["at"])
            day = max(f"{at:%Y-%m}-01", "2020-09-01")  # What came before is in the first span.
            seen = (row["who"], row["what"]["id"], int(at.timestamp()))
            wanted.setdefault(day, []).append(seen)
    for night in range(4):
        replay.write_span(tmp_path, night)
        day = replay.days[night].isoformat()
        table = pq.read_table(tmp_path / LANDING / day / "events.parquet")
        names = ("user_id", "item_id", "timestamp")
        found = list(zip(*(table[name].to_pylist() for name in names), strict=True))
        assert sorted(found) == sorted(wanted[day])


def test_the_catalogue_grows_with_what_was_heard_of(config: Config, tmp_path: Path) -> None:
    replay = BacktestData.read(config, "month", 12)
    sizes = []
    for night in range(3):
        replay.write_span(tmp_path, night)
        items = pq.read_table(tmp_path / "items.parquet")["item_id"].to_pylist()
        heard = {i for events in replay.events[: night + 1] for i in events["item_id"].to_pylist()}
        assert set(items) == heard
        sizes.append(len(items))
    assert sizes[0] < sizes[-1]


def test_the_pipeline_reads_a_span_as_it_read_the_raw_rows(config: Config, tmp_path: Path) -> None:
    replay = BacktestData.read(config, "month", 2)
    replay.write_span(tmp_path, 1)
    again = replayed(config, tmp_path)
    source = again.data.interactions
    (piece,) = plan_pieces(source, "interactions", interaction_columns(source))
    (batch,) = read_piece(piece)
    rows, letters = parse_interactions(batch, source, 2**31)
    assert letters.num_rows == 0
    for name in replay.events[1].column_names:
        assert rows[name].to_pylist() == replay.events[1][name].to_pylist()
    assert again.data.items is not None
    assert [feature.name for feature in again.data.items.features] == ["tags", "price"]


@pytest.mark.parametrize("period", ["day", "week", "month"])
def test_a_span_has_the_events_of_its_period(config: Config, period: str) -> None:
    replay = BacktestData.read(config, period, 3)
    assert len(replay.days) == 3
    assert sum(events.num_rows for events in replay.events) == 499
    days = [pc.cast(events["timestamp"], pa.timestamp("s")) for events in replay.events]
    assert all(day.weekday() == 0 for day in replay.days) or period != "week"
    assert all(day.day == 1 for day in replay.days) or period != "month"
    for first, then, times in zip(replay.days[1:], [*replay.days[2:], None], days[1:], strict=True):
        assert min(times.to_pylist()).date() >= first
        assert then is None or max(times.to_pylist()).date() < then


def test_a_simulation_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    out, plan = tmp_path / "out", {"nights": 3}
    assert finished_nights(out, plan) == []
    (out / NIGHTS).write_text('{"span": "2020-01-01"}\n')
    assert finished_nights(out, plan) == [{"span": "2020-01-01"}]
    with pytest.raises(RecsysError, match=r"R911.*another nights"):
        finished_nights(out, {"nights": 4})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(RecsysError, match=r"R910.*thesis"):
        finished_nights(tmp_path / "other", plan)
