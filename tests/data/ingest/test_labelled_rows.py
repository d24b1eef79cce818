"""Labelled rows through the ingest: impressions over midnight, in files of days and in one file."""

import datetime as dt
import json

import numpy as np
import pytest

from recsys.config import InteractionsConfig
from recsys.data.example_files import read_split
from recsys.data.ingest import segments
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions

DAY = 86_400
START = 19_783 * DAY  # 2024-03-01


def rows_of(n):
    """Returns `(day of the file, row)`: an impression's rows are up to two days apart."""
    chance = np.random.default_rng(7)
    for shown in range(n):
        user, item = f"u{chance.integers(8)}", f"i{chance.integers(5)}"
        time = START + int(chance.integers(5 * DAY))
        for what in ["view", "click", "buy"][: chance.integers(1, 4)]:
            row = {"u": user, "i": item, "t": time, "what": what, "shown": str(shown)}
            yield min(time - START, 6 * DAY) // DAY, row
            time += int(chance.integers(DAY))


def ingest(folder, files, cache=None):
    config = InteractionsConfig.model_validate(
        {
            "files": str(files),
            "columns": {"user": "u", "item": "i", "timestamp": "t", "impression": "shown"},
            "labels": {
                "click": {"column": "what", "values": ["click", "buy"]},
                "buy": {"column": "what", "values": ["buy"], "given": "click"},
            },
            "positive": "buy",
        },
        strict=False,
    )
    source = InteractionSource(interactions=config, eval_share=0.3)
    out = folder / "examples"
    summary = ingest_interactions(source, out, folder / "letters", None, cache)
    names = ["user_id", "item_id", "timestamp", "label", "label:click", "label:buy"]
    splits = {
        split: sorted(
            row
            for table in read_split(out / f"Split-{split}", names)
            for row in zip(*table.to_pydict().values(), strict=True)
        )
        for split in ("train", "eval")
    }
    return summary, splits


@pytest.mark.parametrize("bucket_rows", [1 << 21, 100])
def test_an_impression_over_midnight_is_one_event_in_any_files(tmp_path, monkeypatch, bucket_rows):
    monkeypatch.setattr(segments, "_BUCKET_ROWS", bucket_rows)
    rows = list(rows_of(300))
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for _, row in rows))
    (tmp_path / "days").mkdir()
    for day in range(7):
        date = dt.date(2024, 3, 1 + day)
        lines = [json.dumps(row) + "\n" for at, row in rows if at == day]
        (tmp_path / "days" / f"{date}.jsonl").write_text("".join(lines))
    summary, splits = ingest(tmp_path / "plain", tmp_path / "all.jsonl")
    assert summary["good"] == 300
    assert summary["read"] == len(rows) == summary["good"] + summary["duplicates"]
    pattern = tmp_path / "days" / "{YYYY}-{MM}-{DD}.jsonl"
    for night in range(2):  # The second one finds everything in the cache.
        of_days = ingest(tmp_path / str(night), pattern, tmp_path / "cache")
        assert of_days[1] == splits
        same = ("good", "read", "duplicates", "positives", "cut")
        assert [of_days[0][key] for key in same] == [summary[key] for key in same]
