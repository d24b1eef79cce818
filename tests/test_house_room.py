"""Room on the disk: what a step will write is reckoned before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import room
from recsys.config import InteractionsConfig
from recsys.data.ingest.cache import key_of
from recsys.data.ingest.span_state import settings_of
from recsys.data.ingest.window import Digests, read_window
from recsys.errors import RecsysError
from recsys.house.room import SAFETY, Reads, bytes_of

FLOOR = bytes_of("StatisticsGen.Items", Reads())


def folder_of(path: Path, size: int) -> Path:
    path.mkdir(parents=True)
    (path / "content").write_bytes(b"x" * size)
    return path


def data_of(path: Path, users: int, items: int) -> Path:
    (path / "vocabulary").mkdir(parents=True)
    for name, rows in (("users", users), ("items", items)):
        pq.write_table(pa.table({"row": range(rows)}), path / "vocabulary" / f"{name}.parquet")
    return path


def need(step: str, reads: Reads) -> float:
    """What a step needs above the floor, without the factor of safety."""
    return (bytes_of(step, reads) - FLOOR) / SAFETY


def test_a_step_that_writes_little_needs_little():
    assert 10**6 < FLOOR < 10**8
    assert bytes_of("LatestBlessed", Reads()) == FLOOR


def test_packed_files_need_more_than_plain_ones():
    plain = Reads(files=[("a.csv", 10**6), ("b.tsv", 10**6)])
    packed = Reads(files=[("gs://b/a.csv.gz", 10**6), ("b.PARQUET", 10**6)])
    assert need("InteractionGen", plain) == 8 * 10**6
    assert need("ItemGen", packed) == 32 * 10**6


def test_a_copy_needs_its_size(tmp_path):
    bundle = folder_of(tmp_path / "bundle", 10**6)
    assert need("Pusher", Reads({"bundle": [bundle]})) == 10**6
    model, data = folder_of(tmp_path / "model", 10**6), folder_of(tmp_path / "data", 10**5)
    assert need("Exporter", Reads({"model": [model], "data": [data]})) == 3.1 * 10**6
    folder_of(model / "training_state", 10**7)  # No part of a bundle.
    assert need("Exporter", Reads({"model": [model], "data": [data]})) == 3.1 * 10**6


def test_a_training_needs_its_tables_for_every_checkpoint(tmp_path):
    data = data_of(tmp_path, 30_000, 10_000)
    copied = sum(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    config = {"model": {"dim": 32}, "train": {"checkpoint": {"keep": 3}}}
    wanted = need("Trainer", Reads({"data": [data]}, config=config))
    tables = 40_000 * 32 * 4
    # Three checkpoints and one in writing, with slots; the model three times over, and its slots.
    assert wanted == pytest.approx(tables * 3 * 4 + 5 * tables + copied)
    assert wanted > need("Trainer", Reads({"data": [data]}, config={"model": {"dim": 32}}))


def test_of_a_window_only_what_no_night_has_read_needs_room(monkeypatch, tmp_path):
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / f"{day}.csv").write_bytes(b"x" * 10**6)
    source = {
        "files": str(tmp_path / "{YYYY}-{MM}-{DD}.csv"),
        "columns": ROLES["InteractionGen"][1],
    }
    config = InteractionsConfig.model_validate_json(json.dumps(source))
    kept = tmp_path / "segments"
    read = key_of(
        "span", settings_of(config, "code"), Digests(None).of_span(read_window(config)[0])
    )
    (kept / f"span-{read}").mkdir(parents=True)
    given = {"config": json.dumps({"interactions": source, "eval_share": 0.2})}
    given |= {"segments": str(kept), "code": "code"}
    for code, n_files in (("code", 1), ("other", 2)):
        wanted = FLOOR + round(SAFETY * 4 * n_files * 10**6)
        monkeypatch.setattr(room, "free_bytes", lambda _path, free=wanted: free)
        room.check_room("InteractionGen", {}, tmp_path, {**given, "code": code})
        monkeypatch.setattr(room, "free_bytes", lambda _path, free=wanted - 1: free)
        with pytest.raises(RecsysError, match="R620"):
            room.check_room("InteractionGen", {}, tmp_path, {**given, "code": code})


def test_damaged_vocabularies_are_reckoned_as_they_can(tmp_path):
    data = data_of(tmp_path, 10, 10)
    (data / "vocabulary/users.parquet").write_bytes(b"no parquet")
    assert need("Trainer", Reads({"data": [data]})) > 0


def check(monkeypatch, tmp_path, free: int | None) -> None:
    bundle = SimpleNamespace(uri=str(tmp_path / "bundle"))
    monkeypatch.setattr(room, "free_bytes", lambda _path: free)
    room.check_room("Pusher", {"bundle": [bundle]}, tmp_path)


def test_too_little_room_is_refused_with_what_helps(monkeypatch, tmp_path):
    folder_of(tmp_path / "bundle", 10**6)
    wanted = round(SAFETY * 10**6) + FLOOR
    check(monkeypatch, tmp_path, wanted)
    check(monkeypatch, tmp_path, None)
    with pytest.raises(RecsysError) as caught:
        check(monkeypatch, tmp_path, wanted - 1)
    assert caught.value.code == "R620"
    assert str(tmp_path) in str(caught.value)
    assert "recsys clean" in str(caught.value)
    assert "33.2 MB" in str(caught.value).replace("\N{NO-BREAK SPACE}", " ")
    monkeypatch.setenv("RECSYS_NO_ROOM_CHECK", "1")
    check(monkeypatch, tmp_path, 0)


ROLES = {
    "InteractionGen": ("interactions", {"user": "u", "item": "i", "timestamp": "t"}),
    "ItemGen": ("items", {"item": "i", "title": "n"}),
    "UserGen": ("users", {"user": "u"}),
}


@pytest.mark.parametrize(("name", "factor"), [("raw.csv", 4), ("raw.csv.gz", 16)])
@pytest.mark.parametrize("step", ROLES)
def test_raw_files_are_those_of_the_config(monkeypatch, tmp_path, step, name, factor):
    (tmp_path / name).write_bytes(b"x" * 10**6)
    what, columns = ROLES[step]
    source = {"files": str(tmp_path / name), "columns": columns}
    if what == "users":
        source["features"] = [{"name": "age", "column": "a", "kind": "categories"}]
    given = {"config": json.dumps({what: source, "eval_share": 0.2})}
    wanted = FLOOR + round(SAFETY * factor * 10**6)
    monkeypatch.setattr(room, "free_bytes", lambda _path: wanted)
    room.check_room(step, {}, tmp_path, given)
    monkeypatch.setattr(room, "free_bytes", lambda _path: wanted - 1)
    with pytest.raises(RecsysError, match="R620"):
        room.check_room(step, {}, tmp_path, given)
