"""Segments: which days go together, what a window remembers, and one log of many segments."""

import itertools
import json
import os

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from recsys.config import InteractionColumns, InteractionsConfig
from recsys.data.event_log import EventShard
from recsys.data.ingest.cache import ContentCache, link, sweep
from recsys.data.ingest.outputs import SpanReport, with_missing
from recsys.data.ingest.segment_files import COLUMNS, write_events
from recsys.data.ingest.segment_plan import SpanDays, plan_segments, split_segment
from recsys.data.ingest.store_writer import Source, merge
from recsys.data.ingest.window import Digests, read_window, window_digest
from recsys.data.source_check import check_sources
from recsys.errors import RecsysError

DAY = 86_400


def spans_of(*days, n_buckets=1):
    return [
        SpanDays(f"span {at}", (at,), dict.fromkeys(some, 5), n_buckets)
        for at, some in enumerate(days)
    ]


# --- which days make a segment


@given(
    st.lists(st.sets(st.integers(0, 400) | st.integers(10**4, 10**4 + 9), max_size=60), max_size=5)
)
def test_segments_hold_every_day_once(days):
    segments = plan_segments(spans_of(*days))
    ranges = [(one.first, one.last) for one in segments]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    for at, some in enumerate(days):
        for day in some:
            (home,) = [one for one in segments if one.first <= day <= one.last]
            assert at in home.spans
    # A span alone has as many segments as it has blocks.
    assert len(segments) <= 32 * len(days)


def test_a_day_of_late_rows_touches_that_day_alone():
    before = plan_segments(spans_of({1, 2}, {2, 3}, {3, 4}))
    assert [(one.first, one.spans) for one in before] == [
        (1, (0,)), (2, (0, 1)), (3, (1, 2)), (4, (2,)),
    ]  # fmt: skip
    after = plan_segments(spans_of({1, 2}, {2, 3}, {3, 4}, {4, 5}))
    assert [one.key for one in after[:3]] == [one.key for one in before[:3]]
    assert after[3].key != before[3].key


def test_a_span_of_many_days_has_few_blocks():
    segments = plan_segments(spans_of(set(range(7300))))
    assert len(segments) == 29
    assert {one.last - one.first for one in segments[1:-1]} == {255}


def test_the_order_of_files_is_part_of_the_key_where_it_decides():
    one, other = spans_of({1}, {1})
    turned = [SpanDays("span 0", (1,), one.days, 1), SpanDays("span 1", (0,), other.days, 1)]
    assert plan_segments([one, other])[0].key != plan_segments(turned)[0].key
    moved = [SpanDays("span 0", (7,), one.days, 1), SpanDays("span 1", (9,), other.days, 1)]
    assert plan_segments([one, other])[0].key == plan_segments(moved)[0].key


def test_a_segment_is_cut_at_midnights_within_alone():
    spans = spans_of(set(range(64)))
    segment = plan_segments(spans)[3]
    assert (segment.first, segment.last) == (6, 7)
    assert [segment.is_cut_by(day * DAY) for day in (6, 7, 8)] == [False, True, False]
    halves = split_segment(spans, segment, 7 * DAY)
    assert [(one.first, one.last) for one in halves] == [(6, 6), (7, 7)]
    assert len({segment.key, *(one.key for one in halves)}) == 3


# --- the window


COLUMNS_OF_FILES = InteractionColumns(user="u", item="i", timestamp="t")


def window(folder, pattern="{YYYY}-{MM}-{DD}.csv", **more):
    return InteractionsConfig(files=str(folder / pattern), columns=COLUMNS_OF_FILES, **more)


def test_digests_are_remembered_while_files_are_untouched(tmp_path, monkeypatch):
    raw, root = tmp_path / "raw", tmp_path / "segments"
    raw.mkdir()
    for day in (1, 2):
        (raw / f"2024-03-0{day}.csv").write_text(f"u,i,t\na,b,{day}\n")
    spans = read_window(window(raw))
    assert [one.name for one in spans] == ["2024-03-01", "2024-03-02"]
    with monkeypatch.context() as later:
        # What has just been written isn't trusted yet.
        later.setattr("recsys.data.ingest.window._SETTLED_NS", 0)
        first = window_digest(window(raw), root)
    assert json.loads((root / "digests.json").read_text()).keys() == {
        path for span in spans for path in span.paths
    }
    with monkeypatch.context() as blind:
        blind.setattr("recsys.data.ingest.window.content_digest", None)
        assert window_digest(window(raw), root) == first
    file = raw / "2024-03-02.csv"
    stamp = file.stat()
    file.write_text("u,i,t\na,c,2\n")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # The same size and time.
    assert window_digest(window(raw), root) != first
    assert Digests(None).of_span(spans[0]) == Digests(root).of_span(spans[0])


def test_a_file_that_cannot_be_read_has_a_place_in_the_digest(tmp_path):
    (tmp_path / "2024-03-01.csv").write_text("u,i,t\na,b,1\n")
    gone = tmp_path / "2024-03-02.csv"
    gone.symlink_to(tmp_path / "nowhere")
    first = window_digest(window(tmp_path))
    gone.unlink()
    gone.write_text("u,i,t\na,b,1\n")
    assert window_digest(window(tmp_path)) != first


def test_a_source_is_checked_span_by_span(tmp_path):
    from recsys.config import DataConfig

    (tmp_path / "2024-03-01.csv").write_text("u,i,t\na,b,1\n")
    (tmp_path / "2024-03-02.csv").write_text("")
    check_sources(DataConfig(interactions=window(tmp_path)))
    (tmp_path / "2024-03-03.csv").write_text("u,x,t\na,b,1\n")
    with pytest.raises(RecsysError, match=r"R262.*2024-03-03.*R203"):
        check_sources(DataConfig(interactions=window(tmp_path)))
    check_sources(DataConfig(interactions=window(tmp_path, bad_spans="set_aside")))


def told_of(*spans):
    return [SpanReport(n, str(n), 0, 1, 1, 0, 0, "read", False, False, None) for n in spans]


def test_days_without_a_file_are_missing_where_spans_are_days():
    found = with_missing(told_of(19_783, 19_784, 19_787), are_days=True)
    assert [(one.name, one.state) for one in found[2:4]] == [
        ("2024-03-03", "missing"),
        ("2024-03-04", "missing"),
    ]
    assert len(with_missing(told_of(1, 2, 5), are_days=False)) == 3
    # A file a week.
    assert len(with_missing(told_of(7, 14, 21), are_days=True)) == 3


# --- one log of many segments


@st.composite
def segmented(draw):
    """Events of segments that are disjoint in time: `[(user, item, time, weight)]` each."""
    n = draw(st.integers(0, 5))
    return [
        draw(
            st.lists(
                st.tuples(
                    st.integers(0, 6), st.integers(0, 4),
                    st.integers(100 * at, 100 * at + 2), st.sampled_from([0.5, 1.0, 2.0]),
                ),
                min_size=1, max_size=12,
            )
        )
        for at in range(n)
    ]  # fmt: skip


def source_of(events, user_ids, item_rows, folder, weighted):
    """Writes events as a segment has them, and maps them as the store does."""
    table = pa.table(
        {
            "user_id": [f"u{user}" for user, *_ in events],
            "item_id": [f"i{item}" for _, item, *_ in events],
            "timestamp": pa.array([time for _, _, time, _ in events], pa.int64()),
            "weight": pa.array([weight for *_, weight in events], pa.float32()),
        }
    )
    write_events(folder, table if weighted else table.drop_columns(["weight"]))
    columns = {
        name: np.load(folder / f"{name}.npy") for name in COLUMNS if name != "weight" or weighted
    }
    place = np.array([user_ids.index(user) for user in sorted({e[0] for e in events})], np.int32)
    rows = np.array([item_rows[item] for item in sorted({e[1] for e in events})], np.int32)
    return (
        Source(place=place, item_row=rows, weight=None, **columns)
        if not weighted
        else Source(place=place, item_row=rows, **columns)
    )


@settings(max_examples=40)
@given(
    segments=segmented(), most=st.integers(1, 20), weighted=st.booleans(),
    item_rows=st.permutations(range(5)), user_order=st.permutations(range(7)),
)  # fmt: skip
def test_segments_laid_end_to_end_are_the_events_sorted_at_once(
    tmp_path_factory, segments, most, weighted, item_rows, user_order
):
    folder = tmp_path_factory.mktemp("segments")
    whole = [event for events in segments for event in events]
    users = [user for user in user_order if user in {event[0] for event in whole}]
    rows = np.arange(len(users), dtype=np.int32) * 3
    sources = [
        source_of(events, users, item_rows, folder / str(at), weighted)
        for at, events in enumerate(segments)
    ]
    shards = tuple(merge(sources, rows, most))
    assert sum(len(shard.offsets) - 1 for shard in shards) == len(users)
    if not whole:
        assert shards == ()
        return
    user = np.array([users.index(event[0]) for event in whole], np.int32)
    wanted = EventShard.sort(
        user, rows[user], np.array([item_rows[event[1]] for event in whole]),
        np.array([event[2] for event in whole]), len(users),
        np.array([event[3] for event in whole], np.float32) if weighted else None,
    )  # fmt: skip
    for name in ("user_row", "item_row", "timestamp", "tied", *["weight"] * weighted):
        joined = np.concatenate([getattr(shard, name) for shard in shards])
        assert joined.tolist() == getattr(wanted, name).tolist()
        assert joined.dtype == getattr(wanted, name).dtype
    starts = np.cumsum([0, *(len(shard) for shard in shards)])
    offsets = [s.offsets[:-1] + at for s, at in zip(shards, starts, strict=False)]
    assert np.concatenate([*offsets, starts[-1:]]).tolist() == wanted.offsets.tolist()


def test_without_links_a_file_is_copied(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("text")

    def other_device(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_device)
    link(tmp_path / "a", tmp_path / "b" / "c")
    assert (tmp_path / "b" / "c").read_text() == "text"
    assert (tmp_path / "a").stat().st_nlink == 1


def test_old_and_unfinished_folders_go_and_nothing_behind_a_link(tmp_path):
    def furnish(folder):
        for name in ("old", ".span-" + "0" * 32, ".config-of-theirs"):
            (folder / name).mkdir(parents=True)
            (folder / name / "content").write_text("x")

    furnish(tmp_path / "outside")
    (tmp_path / "linked").symlink_to(tmp_path / "outside")
    furnish(tmp_path / "root")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    removed = {}
    for name in ("linked", "root"):
        ContentCache(tmp_path / name).remove_unfinished()
        removed[name] = sweep(tmp_path / name, [".config-of-theirs"], unused_for_s=-60.0)
    assert removed == {"linked": {}, "root": {"old": 1}}
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [
        ".config-of-theirs",
        "link",
    ]
    assert len(list((tmp_path / "outside").iterdir())) == 3
