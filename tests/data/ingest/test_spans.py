"""A rolling window, night by night, against a run from scratch that knows nothing of spans."""

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import HealthCheck, given, settings
from places import ROOT

from benchmarks.stores import write_store as write_plain_store
from recsys.config import (
    InteractionColumns,
    InteractionsConfig,
    VocabulariesConfig,
    VocabularyConfig,
)
from recsys.data.example_files import read_split
from recsys.data.ingest import ingestion, segment_parts
from recsys.data.ingest.cache import sweep
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
from recsys.data.ingest.segment_parts import read_parts, segments_in_use
from recsys.data.ingest.store_writer import build_store, make_vocabularies
from recsys.data.ingest.tasks import LOCAL_RUNNER
from recsys.data.split import choose_cut, event_times
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import merge_counts
from recsys.errors import RecsysError
from tests.support.growing import grow

pytestmark = pytest.mark.pipeline

PROCESSES = ["--direct_num_workers=2"]  # Beam's local runner, not our threads.
DAY = 86_400
FIRST = dt.date(2024, 3, 1)
START = (FIRST - dt.date(1970, 1, 1)).days * DAY
COLUMNS = InteractionColumns(user="user", item="item", timestamp="time", rating="stars")


class World:
    """A root, a folder of raw files, and nights that are run on them."""

    def __init__(self, folder, **more):
        self.raw, self.root = folder / "raw", folder / "root"
        self.raw.mkdir()
        self.n_nights, self.beam = 0, None
        pattern = str(self.raw / "{YYYY}-{MM}-{DD}" / "v{VERSION}" / "*.csv")
        self.config = InteractionsConfig(
            files=pattern, columns=COLUMNS, positive_at_least=2.0, **more
        )

    def write(self, day, rows, version=1, name="a.csv", header="user,item,time,stars"):
        date = FIRST + dt.timedelta(days=day)
        folder = self.raw / date.isoformat() / f"v{version}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join([header, *rows]) + "\n")
        return folder / name

    def fill(self, n_days):
        """Writes 30 rows for each of the first days."""
        for day in range(n_days):
            self.write(day, rows_of(day, 30))

    def night(self, config=None, share=1.0, code="code"):
        self.n_nights += 1
        out = self.root / f"night-{self.n_nights}"
        source = InteractionSource(
            interactions=config or self.config, eval_share=0.25, max_rejected_share=share
        )
        summary = ingest_interactions(
            source,
            str(out / "examples"),
            str(out / "letters"),
            self.beam,
            self.root / "segments",
            code,
        )
        return out, summary


def rows_of(day, n, seed=0, spill=0):
    """`n` rows of a day, the last `spill` of them of the day before."""
    chance = np.random.default_rng([seed, day])
    times = START + day * DAY + chance.integers(0, DAY, n)
    times[n - spill :] -= DAY
    return [
        f"u{chance.integers(0, 12)},i{chance.integers(0, 9)},{time},{chance.integers(1, 6)}"
        for time in times
    ]


@pytest.fixture
def plainly(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


# --- the reference: plain Python, which reads everything anew


def reference(paths):
    """Returns the good rows of files without duplicates, by rules written once more."""
    read = rejected = 0
    kept = {}
    for path in paths:
        for line in Path(path).read_text().splitlines()[1:]:
            read += 1
            parts = line.split(",")
            if len(parts) != 4 or not parts[0] or not parts[2].isdigit():
                rejected += 1
                continue
            user, item, time, stars = parts
            row = (user, item, int(time), float(stars), int(float(stars) >= 2))
            kept.setdefault(row[:3], row)
    rows = list(kept.values())
    days = {}
    for row in rows:
        if row[4]:
            days[row[2] // DAY] = days.get(row[2] // DAY, 0) + 1
    cut = choose_cut(days, 0.25)
    return {
        "read": read,
        "rejected": rejected,
        "good": len(rows),
        "duplicates": read - rejected - len(rows),
        "cut": cut,
        "train": sorted(row for row in rows if row[2] < cut),
        "eval": sorted(row for row in rows if row[2] >= cut),
    }


NAMES = ["user_id", "item_id", "timestamp", "rating", "label"]


def events(out, split):
    tables = read_split(out / "examples" / f"Split-{split}", NAMES)
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def told(out):
    return json.loads((out / "letters" / "spans.json").read_text())


def states(out):
    return {one["name"][-2:]: one["state"] for one in told(out)}


def check(out, summary, previous=None, are_all_spans=True):
    """Holds a night to the reference: rows, counts, vocabularies, store; returns vocabularies."""
    wanted = reference(summary["files"])
    for name in ("read", "good", "rejected", "duplicates", "cut"):
        assert summary[name] == wanted[name], name
    for split in ("train", "eval"):
        assert events(out, split) == wanted[split]
        assert summary[split] == len(wanted[split])
        assert summary[f"{split}_positives"] == sum(row[4] for row in wanted[split])
    sums = [sum(one[name] for one in told(out)) for name in ("rows", "rejected", "duplicates")]
    aside = [one for one in told(out) if one["state"] == "set_aside"]
    sums = [
        n - sum(one[k] for one in aside)
        for n, k in zip(sums, ("rows", "rejected", "duplicates"), strict=True)
    ]
    if are_all_spans:
        assert sums == [wanted[name] for name in ("read", "rejected", "duplicates")]
    tables = {
        split: pa.table(dict(zip(NAMES, columns, strict=True)))
        for split in ("train", "eval")
        if (columns := [list(column) for column in zip(*wanted[split], strict=True)])
    }
    vocabularies = {}
    for name, column in (("users", "user_id"), ("items", "item_id")):
        parts = read_parts(out / "examples", "train")
        counted = merge_counts([part.counts(f"{name}.parquet") for part in parts])
        positives = [row for row in wanted["train"] if row[4]]
        plain = {}
        for row in positives:
            id_ = row[NAMES.index(column)]
            count, seen = plain.get(id_, (0, 0))
            plain[id_] = (count + 1, max(seen, row[2]))
        found = {one["id"]: (one["count"], one["last_seen"]) for one in counted.to_pylist()}
        assert found == plain
        before = None if previous is None else previous[name]
        config = VocabularyConfig(min_count=2, hash_buckets=3, evict_after_days=2)
        vocabularies[name], _ = grow(before, counted, config, summary["cut"])
    (out / "vocabulary").mkdir()
    for name, vocabulary in vocabularies.items():
        vocabulary.save(out / "vocabulary" / f"{name}.parquet")
    build_store(out / "examples", out / "vocabulary", summary["cut"], out / "store", most=50)
    encoded = [
        encoded_positives(tables[split], *vocabularies.values()) for split in ("train", "eval")
    ]
    write_plain_store(out / "plain", summary["cut"], *encoded)
    same_stores(*(InteractionStore.open(out / name, verify=True) for name in ("store", "plain")))
    return vocabularies


def encoded_positives(table, users, items):
    positives = table.filter(pc.equal(table["label"], 1))
    return pa.table(
        {
            "user_id": positives["user_id"],
            "user_row": users.rows(positives["user_id"]),
            "item_row": items.rows(positives["item_id"]),
            "timestamp": event_times(positives),
        }
    )


def same_stores(one, other):
    assert one.cut == other.cut
    for part in ("train", "eval"):
        a, b = getattr(one, part), getattr(other, part)
        users = [getattr(store, f"{part}_users") for store in (one, other)]
        assert users[0].ids.to_pylist() == users[1].ids.to_pylist()
        assert users[0].rows.tolist() == users[1].rows.tolist()
        assert a.offsets.tolist() == b.offsets.tolist()
        for name in ("user_row", "item_row", "timestamp", "tied"):
            assert np.asarray(getattr(a, name)).tolist() == np.asarray(getattr(b, name)).tolist()


@pytest.fixture
def world(tmp_path, plainly):
    return World(tmp_path, spans=4)


def test_each_day_reads_what_is_new_and_equals_a_run_from_scratch(world):
    for day in range(3):
        world.write(day, rows_of(day, 40, spill=3))
    out, summary = world.night()
    before = check(out, summary)
    assert states(out) == {"01": "read", "02": "read", "03": "read"}
    assert {one["new"] for one in told(out)} == {True}
    for day in range(3, 6):
        world.write(day, rows_of(day, 40, spill=3))
        out, summary = world.night()
        before = check(out, summary, before)
        found = list(states(out).values())
        assert found == [*["reused"] * (len(found) - 1), "read"]
        # The new day, and the one before it, of which the new span has three rows; once
        # the window moves, also the day that an old span had rows of.
        assert summary["segments"]["made"] == 2 + (day > 3)


ROW = st.builds(
    "{},{},{},{}".format,
    st.sampled_from(["ann", "bob", "é", ""]),
    st.sampled_from(["1", "2", "007"]),
    st.integers(0, 3 * DAY // 9000).map(lambda n: n * 9000),
    st.sampled_from(["1", "3", "5"]),
)
CHANGE = st.tuples(
    st.sampled_from(["rows", "rows", "rows", "copy", "empty", "broken", "wide", "version"]),
    st.integers(0, 5),
    st.lists(ROW, min_size=1, max_size=8),
)


def at_day(day, rows):
    """Moves rows, whose times are from 0 on, so that they begin a day before `day`."""
    moved = []
    for row in rows:
        user, item, time, stars = row.split(",")
        moved.append(f"{user},{item},{START + (day - 1) * DAY + int(time)},{stars}")
    return moved


class Plan:
    """The expected files of each day."""

    def __init__(self, world):
        self.world, self.kind, self.file, self.version = world, {}, {}, {}

    def change(self, kind, day, rows):
        rows = at_day(day, rows)
        if kind == "copy" and self.file:
            source = self.file[max(self.file)]
            rows = (
                source.read_text().splitlines()[1:] if self.kind[max(self.file)] == "rows" else rows
            )
        elif kind == "wide":
            rows = [f"u{n % 3},i{n % 2},{START + (n * 5 - 100) * DAY},3" for n in range(45)] + rows
        self.version[day] = self.version.get(day, 1) + (kind == "version")
        header = "user,item,when,stars" if kind == "broken" else "user,item,time,stars"
        content = [] if kind == "empty" else rows
        self.file[day] = self.world.write(day, content, self.version[day], header=header)
        self.kind[day] = kind if kind in ("empty", "broken") else "rows"

    def window(self):
        return sorted(self.file)[-4:]

    def contents(self):
        return [(str(self.file[day]), self.file[day].read_text()) for day in self.window()]

    def used(self):
        return [str(self.file[day]) for day in self.window() if self.kind[day] == "rows"]


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(nights=st.lists(st.lists(CHANGE, min_size=1, max_size=3), min_size=1, max_size=5))
def test_any_days_equal_runs_from_scratch(tmp_path_factory, plainly, nights):
    world = World(tmp_path_factory.mktemp("world"), spans=4, bad_spans="set_aside")
    plan, before, first_read = Plan(world), None, {}
    for changes in nights:
        for change in changes:
            plan.change(*change)
        used = plan.used()
        try:
            out, summary = world.night()
        except RecsysError as error:
            # Nothing but bad rows, or all on one day: no split.
            assert (error.code == "R264") == (used == []), error  # noqa: PT017
            assert error.code in ("R264", "R206", "R207")  # noqa: PT017
            return
        empty = [str(plan.file[day]) for day in plan.window() if plan.kind[day] == "empty"]
        assert sorted(summary["files"]) == sorted([*used, *empty])
        before = check(out, summary, before)
        found = {one["span"]: one for one in told(out)}
        for day in plan.window():
            one = found[START // DAY + day]
            state = {"rows": one["state"], "empty": "empty", "broken": "set_aside"}[plan.kind[day]]
            assert one["state"] == state
            # A run over the same files is the same run, and says the same.
            others = [other for other, by in first_read.items() if by != plan.contents()]
            assert one["new"] == (day not in others)
            assert one["late"] == (one["new"] and day < max(others, default=-1))
        for day in plan.window():
            if plan.kind[day] != "broken":
                first_read.setdefault(day, plan.contents())
        again, repeated = world.night()
        assert repeated["segments"]["made"] == 0
        assert {**repeated, "spans": None} == {
            **summary, "spans": None, "segments": repeated["segments"],
        }  # fmt: skip
        assert [one["new"] for one in told(again)] == [one["new"] for one in told(out)]


# --- spans that aren't as they should be


def test_a_span_that_comes_late_is_read_and_said_to_be_late(world):
    for day in (0, 1, 3):
        world.write(day, rows_of(day, 30))
    out, summary = world.night()
    assert states(out)["03"] == "missing"
    world.write(2, rows_of(2, 30))
    out, summary = world.night()
    check(out, summary)
    (late,) = [one for one in told(out) if one["late"]]
    assert (late["name"], late["state"], late["new"]) == ("2024-03-03", "read", True)
    assert summary["segments"] == {"reused": 3, "made": 1, "damaged": []}
    # It is late in the night that reads it, and in no later one.
    world.write(4, rows_of(4, 30))
    assert not [one for one in told(world.night()[0]) if one["late"]]


def test_an_empty_span_is_reported_and_stops_nothing(world):
    world.fill(3)
    world.write(3, [])
    world.write(4, []).write_text("")
    out, summary = world.night()
    check(out, summary)
    assert states(out) == {"02": "read", "03": "read", "04": "empty", "05": "empty"}


BREAK = {
    "wrong columns": lambda file: file.write_text("user,thing,time,stars\nu,i,1,2\n"),
    "another format": lambda file: file.write_bytes(b"PAR1" + bytes(40) + b"PAR1"),
    "cut off": lambda file: file.write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03cut"),
    "bad rows": lambda file: file.write_text(
        file.read_text() + "\n".join(["u,i,never,2"] * 10) + "\n"
    ),
}


@pytest.mark.parametrize("how", BREAK)
def test_a_broken_span_stops_the_run_or_is_set_aside_until_it_changes(world, how):
    world.fill(3)
    good = world.night(share=0.1)[1]
    file = world.write(3, rows_of(3, 30))
    whole = file.read_text()
    BREAK[how](file)
    code = "R263" if how == "bad rows" else "R262"
    with pytest.raises(RecsysError, match=code + r".*2024-03-04.*03-04.v1.a\.csv.*set_aside"):
        world.night(share=0.1)
    aside = world.config.model_copy(update={"bad_spans": "set_aside"})
    out, summary = world.night(aside, share=0.1)
    check(out, summary)
    last = told(out)[-1]
    assert (last["state"], last["new"]) == ("set_aside", True)
    assert "a.csv" in last["reason"]
    assert summary["segments"]["made"] == 0
    assert summary["rejected"] == good["rejected"] == 0
    assert pq.read_table(out / "letters" / "dead_letters").num_rows == (
        10 if how == "bad rows" else 1
    )
    file.write_text(whole)
    out, summary = world.night(aside, share=0.1)
    check(out, summary)
    assert told(out)[-1]["state"] == "read"


def test_a_window_without_a_good_span_is_refused(world):
    world.config = world.config.model_copy(update={"bad_spans": "set_aside"})
    world.write(0, [])
    BREAK["wrong columns"](world.write(1, []))
    with pytest.raises(RecsysError, match="R264"):
        world.night()


# --- what is kept


def kept_folders(world, kind="segment"):
    return sorted(world.root.glob(f"segments/{kind}-*"))


def test_a_damaged_segment_is_set_aside_and_made_again(world):
    world.config = world.config.model_copy(update={"spans": 5})
    world.fill(4)
    world.night()
    world.write(4, rows_of(4, 30))
    damaged = [kept_folders(world)[2], kept_folders(world, "span")[1]]
    for folder, kind in zip(damaged, ("*.parquet", "*.arrow"), strict=True):
        file = next(folder.rglob(kind))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.unlink()  # The link in the artifact stays whole.
        file.write_bytes(content)
    out, summary = world.night()
    check(out, summary)
    assert sorted(summary["segments"]["damaged"]) == sorted(one.name for one in damaged)
    assert summary["segments"]["made"] == 2
    assert len(list((world.root / "segments").glob(".damaged-*"))) == 2
    assert world.night()[1]["segments"] == {"reused": 5, "made": 0, "damaged": []}


def test_files_of_an_artifact_are_links_that_outlive_what_is_kept(world):
    world.fill(4)
    out, summary = world.night()
    linked = next((out / "examples" / "segments").rglob("item.npy"))
    assert linked.stat().st_nlink == 2
    removed = sweep(world.root / "segments", [], unused_for_s=-1)
    assert len(removed) == 8
    check(out, summary)
    out, again = world.night()
    assert again["segments"]["made"] == 4


def test_a_sweep_leaves_what_is_in_use_and_what_was_used_lately(world):
    world.fill(4)
    first, _ = world.night()
    world.write(4, rows_of(4, 30))
    second, _ = world.night()
    root = world.root / "segments"
    assert sweep(root, []) == {}
    used = segments_in_use([second / "examples"])
    dry = sweep(root, used, unused_for_s=-1, dry_run=True)
    assert dry.keys() == segments_in_use([first / "examples"]) - used
    assert all(n_bytes > 0 for n_bytes in dry.values())
    assert sweep(root, used, unused_for_s=-1) == dry
    assert world.night()[1]["segments"] == {"reused": 4, "made": 0, "damaged": []}


def test_what_other_code_or_another_config_made_is_not_used(world):
    world.fill(4)
    world.night()
    assert world.night(code="other")[1]["segments"]["made"] == 4
    stricter = world.config.model_copy(update={"positive_at_least": 4.0})
    assert world.night(stricter)[1]["segments"]["made"] == 4
    assert world.night(share=0.5)[1]["segments"]["made"] == 0


def test_a_cut_within_a_segment_divides_it(world):
    # Sixty days in one span: blocks of two days; the cut may divide a block.
    rows = [f"u{n % 7},i{n % 5},{START + (n % 60) * DAY + n},{1 + n % 5}" for n in range(240)]
    for n_more in (0, 60):
        more = [f"v{n % 7},i1,{START + 59 * DAY + n},5" for n in range(n_more)]
        world.write(0, [*rows, *more])
        out, summary = world.night()
        check(out, summary)
        assert summary["segments"]["made"] + summary["segments"]["reused"] in (30, 31, 32)


def test_the_first_file_has_the_row_that_stays(world):
    for day in range(3):
        world.write(day, rows_of(day, 20))
    time = START + 2 * DAY + 5
    world.write(0, [*rows_of(0, 20), f"ann,1,{time},1"])
    world.write(2, [f"ann,1,{time},5", *rows_of(2, 20)])
    out, summary = world.night()
    check(out, summary)
    kept = [row for split in ("train", "eval") for row in events(out, split) if row[2] == time]
    assert [row[3] for row in kept] == [1.0]


def test_patterns_come_in_the_order_of_the_config_whatever_their_spans_are(world):
    time = START + 5
    for name, stars in (("a-1", 1), ("b-5", 5)):
        rows = [*rows_of(0, 9), *rows_of(1, 9)][: 18 - stars]
        text = "\n".join(["user,item,time,stars", *rows, f"ann,1,{time},{stars}"])
        (world.raw / f"{name}.csv").write_text(text + "\n")
    patterns = tuple(str(world.raw / name) for name in ("b-{SPAN}.csv", "a-{SPAN}.csv"))
    world.config = world.config.model_copy(update={"files": patterns})
    out, summary = world.night()
    check(out, summary)
    kept = [row for split in ("train", "eval") for row in events(out, split) if row[2] == time]
    assert [row[3] for row in kept] == [5.0]
    assert [one["name"] for one in told(out)] == ["1", "5"]


def test_files_without_a_span_are_read_beside_those_with_one(world):
    plain = world.raw / "old.csv"
    plain.write_text("\n".join(["user,item,time,stars", *rows_of(0, 30, seed=1)]) + "\n")
    world.config = world.config.model_copy(update={"files": (str(plain), world.config.files)})
    world.fill(3)
    out, summary = world.night()
    check(out, summary, are_all_spans=False)
    assert len(told(out)) == 3
    assert str(plain) in summary["files"]


def test_a_row_of_tomorrow_is_good_when_it_is_tomorrow(world, monkeypatch):
    soon = START + 3 * DAY + 100
    for day in range(3):
        world.write(day, [*rows_of(day, 20), f"ann,1,{soon},5"] if day == 2 else rows_of(day, 20))
    monkeypatch.setattr(ingestion.time, "time", lambda: soon - 50)
    assert world.night()[1]["rejected"] == 1
    assert world.night()[1]["segments"]["made"] == 0
    monkeypatch.setattr(ingestion.time, "time", lambda: soon + 50)
    out, summary = world.night()
    check(out, summary)
    assert summary["rejected"] == 0


def test_a_full_disk_leaves_nothing_half(world, monkeypatch):
    world.fill(3)
    world.night()
    before = [folder.name for folder in kept_folders(world, "*")]
    world.write(3, rows_of(3, 30))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for name in ("write_events", "write_examples"):
        with monkeypatch.context() as patched:
            patched.setattr(segment_parts, name, full)
            with pytest.raises(OSError, match="No space"):
                world.night()
        assert not list((world.root / "segments").glob(".segment-*"))
    assert set(before) <= {folder.name for folder in kept_folders(world, "*")}
    out, summary = world.night()
    check(out, summary)
    assert summary["segments"] == {"reused": 3, "made": 1, "damaged": []}
    assert [one["new"] for one in told(out)] == [False, False, False, True]


def test_a_night_by_beam_is_one_by_the_code_that_knows_no_spans(tmp_path):
    world = World(tmp_path, spans=4)
    world.beam = beam.Pipeline(LOCAL_RUNNER, PipelineOptions(PROCESSES))
    for day in range(4):
        world.write(day, [*rows_of(day, 60, spill=4), "u1,i1,never,3"])
    world.night()
    world.write(4, rows_of(4, 60, spill=4))
    out, summary = world.night()
    plain = tmp_path / "plain"
    given_files = {"files": tuple(summary["files"]), "spans": None}
    source = InteractionSource(
        interactions=world.config.model_copy(update=given_files), eval_share=0.25
    )
    wanted = ingest_interactions(
        source, str(plain / "examples"), str(plain / "letters"), world.beam
    )
    # All that an ingestion without spans counts, to the row.
    assert {name: summary[name] for name in wanted} == wanted
    letters = [
        pq.read_table(one / "letters" / "dead_letters").sort_by("file").to_pylist()
        for one in (out, plain)
    ]
    assert letters[0] == letters[1]
    stores = []
    for folder in (out, plain):
        (folder / "vocabulary").mkdir()
        make_vocabularies(
            folder / "examples", summary["cut"], {}, None, folder / "vocabulary",
            VocabulariesConfig(),
        )  # fmt: skip
        build_store(folder / "examples", folder / "vocabulary", summary["cut"], folder / "store")
        stores.append(InteractionStore.open(folder / "store", verify=True))
        assert events(folder, "train") == events(out, "train")
    same_stores(*stores)
    for name in ("users", "items"):
        files = [folder / "vocabulary" / f"{name}.parquet" for folder in (out, plain)]
        assert pq.read_table(files[0]).equals(pq.read_table(files[1]))


_NIGHT = """
import os, sys
from pathlib import Path
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
config, out, root, call = sys.argv[1:]
calls, sync = [0], os.fsync
def killed(descriptor):
    calls[0] += 1
    if calls[0] == int(call):
        os.kill(os.getpid(), 9)
    sync(descriptor)
os.fsync = killed
source = InteractionSource.model_validate_json(config)
ingest_interactions(
    source, out + "/examples", out + "/letters", None, Path(root), "code"
)
print(calls[0])
"""


def night_of_its_own(world, name, call):
    source = InteractionSource(interactions=world.config, eval_share=0.25)
    words = [source.model_dump_json(), str(world.root / name), str(world.root / "segments")]
    return subprocess.run(
        [sys.executable, "-c", _NIGHT, *words, str(call)],
        check=False, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.faults
def test_a_night_that_is_killed_anywhere_is_made_good_by_the_next(tmp_path):
    world = World(tmp_path, spans=4)
    for day in range(4):
        world.write(day, rows_of(day, 30, spill=2))
    world.night()
    shutil.copytree(world.root / "segments", tmp_path / "before")
    world.write(4, rows_of(4, 30, spill=2))
    whole = night_of_its_own(world, "whole", 0)
    n_calls = int(whole.stdout)
    wanted = json.loads((world.root / "whole" / "letters" / "summary.json").read_text())
    for call in range(1, n_calls + 1, max(1, n_calls // 12)):
        shutil.rmtree(world.root / "segments")
        shutil.copytree(tmp_path / "before", world.root / "segments")
        killed = night_of_its_own(world, f"killed-{call}", call)
        assert killed.returncode == -9, killed.stderr[-2000:]
        out, summary = world.night()
        check(out, summary)
        assert summary["segments"]["damaged"] == []
        assert {**summary, "segments": 0, "spans": 0} == {**wanted, "segments": 0, "spans": 0}
        # New in the night that was killed, and so in the one that takes its place.
        assert told(out)[-1]["new"]
        assert not list((world.root / "segments").glob(".*-*"))
