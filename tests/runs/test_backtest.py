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

from recsys.cli.run import nights_for_people
from recsys.config import Config
from recsys.data.interactions import interaction_columns, parse_interactions
from recsys.data.sources.pieces import plan_pieces, read_piece
from recsys.errors import RecsysError
from recsys.report.runs import RunRecord
from recsys.runs.backtest import (
    LANDING,
    BacktestData,
    BacktestJournal,
    add_arms,
    replay_config,
    summarize,
)
from recsys.runs.index import read_runs


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
    raw = {**config.model_dump(mode="json"), "data": replay_config(config, tmp_path)}
    again = Config.model_validate_json(json.dumps(raw))
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
    BacktestJournal(out, plan).add({"span": "2020-01-01"})
    again = BacktestJournal(out, plan)
    assert again.entries == [{"span": "2020-01-01"}]
    again.add({"span": "2020-02-01"})
    assert [night["span"] for night in BacktestJournal(out, plan).entries] == [
        "2020-01-01",
        "2020-02-01",
    ]
    with pytest.raises(RecsysError, match=r"R911.*another nights"):
        BacktestJournal(out, {"nights": 4})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(RecsysError, match=r"R910.*thesis"):
        BacktestJournal(tmp_path / "other", plan)


def _night(n: int, warm: float, cold: float, *, base: bool = True) -> dict[str, object]:
    return {
        "span": f"2020-01-{n + 1:02}", "events": 10, "broken": None, "repaired": [],
        "state": "blessed", "seconds": 2.0,
        "warm": {"value": warm, "interval": [warm / 2, warm * 2], "seconds": 1.0, "steps": 25,
                 "base": "model/1" if base else None},
        "cold": {"value": cold, "seconds": 4.0, "steps": 100},
        "frozen": {"value": cold / 2, "seconds": None, "steps": None},
    }  # fmt: skip


def test_the_sum_is_over_the_days_that_can_be_compared() -> None:
    nights = [_night(0, 9.0, 1.0, base=False), *(_night(n, 0.1 * n, 0.05 * n) for n in range(1, 9))]
    nights.append({**_night(9, 0, 0), "state": "failed", "warm": None, "cold": None})
    found = summarize(nights)
    assert found["compared"] == 8
    assert found["states"] == {"blessed": 9, "failed": 1}
    assert found["warm_over_cold"]["ratio"] == 2.0
    assert found["warm_over_cold"]["interval"] == [2.0, 2.0]
    assert found["steps_of_warm_over_cold"]["ratio"] == 0.25
    assert found["warm_over_cold_at_the_end"]["nights"] == 2
    assert found["warm_over_cold_at_the_end"]["interval"] is None  # Of two nights.
    assert found["warm_over_frozen_at_the_end"]["ratio"] == 4.0


def test_the_interval_holds_the_ratio_of_random_nights() -> None:
    pairs = np.random.default_rng(3).uniform(0.5, 1.5, (200, 2))
    found = summarize([_night(n, *pair) for n, pair in enumerate(pairs)])["warm_over_cold"]
    low, high = found["interval"]
    assert low < found["ratio"] < high
    # The delta method's standard error of a ratio of means.
    a, b = pairs.T
    ratio = a.mean() / b.mean()
    error = np.std(a - ratio * b) / b.mean() / np.sqrt(len(a))
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.15)


def test_the_page_of_all_runs_shows_the_arms(tmp_path: Path) -> None:
    for number in (1, 2):
        record = RunRecord(tmp_path / "runs" / str(number))
        record.start("shop", ["Trainer"], 1_770_000_000.0)
        record.step("Trainer", "ran", "first run", 1.0, 1_770_000_000.0)
        measured = {"recall@10": 0.1}
        record.end({"name": "shop", "metrics": measured, "deciding": "recall@10", "started": 1.0})
        add_arms(tmp_path, str(number), {"cold": {"metrics": {"recall@10": 0.25}}})
    runs, damaged = read_runs(tmp_path)
    assert not damaged
    assert [run.figure("cold", "recall@10") for run in runs] == [0.25, 0.25]
    page = (tmp_path / "index.html").read_text()
    assert "cold</li>" in page
    assert page.count("<polyline") == 2


def test_a_comparison_is_shown_if_there_is_one():
    names = ("cold", "cold_at_the_end", "frozen_at_the_end")
    summary = dict.fromkeys([f"warm_over_{name}" for name in names])
    summary |= dict.fromkeys(["steps_of_warm_over_cold", "train_seconds_of_warm_over_cold"])
    summary |= {"nights": 2, "states": {"blessed": 2}, "seconds": 1.0}
    title = "recall@10 over 2 nights"
    assert nights_for_people("recall@10", summary)[title] == []
    ratio = {"ratio": 1.5, "interval": (1.0, 1.25), "nights": 2}
    [row] = nights_for_people("recall@10", summary | {"warm_over_cold": ratio})[title]
    assert (row["warm against"], row["change"], row["nights"]) == ("cold", 0.5, 2)
