"""Segments and windows: which days go together, and what is remembered of a window."""

import itertools
import json
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from recsys.config import InteractionColumns, InteractionsConfig
from recsys.data.ingest.cache import CachedFolder, ContentCache, link, sweep
from recsys.data.ingest.segments import plan_segments
from recsys.data.ingest.spans import (
    Span,
    check_sources,
    digest_spans,
    read_window,
    window_digest,
)
from recsys.data.ingest.window import Seen, missing_days, report_window
from recsys.errors import RecsysError

DAY = 86_400


def span(name, place, days):
    facts = {"buckets": [{"days": [[day, 5, 5] for day in sorted(days)]}]}
    return Span(place, name, 0, (name,), (place,), name, CachedFolder(Path(name), facts))


def spans_of(*days):
    return [span(f"span {at}", at, some) for at, some in enumerate(days)]


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
    # A single span has as many segments as blocks.
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
    def key(*places):
        spans = [span(f"span {n}", place, {1}) for n, place in enumerate(places)]
        return plan_segments(spans)[0].key

    assert key(0, 1) != key(1, 0)
    assert key(0, 1) == key(7, 9)


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
        # A file that has just been written isn't trusted yet.
        later.setattr("recsys.data.ingest.spans._SETTLED_NS", 0)
        first = window_digest(window(raw), root)
    assert json.loads((root / "digests.json").read_text()).keys() == {
        path for span in spans for path in span.paths
    }
    with monkeypatch.context() as blind:
        blind.setattr("recsys.data.ingest.spans.content_digest", None)
        assert window_digest(window(raw), root) == first
    file = raw / "2024-03-02.csv"
    stamp = file.stat()
    file.write_text("u,i,t\na,c,2\n")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # The same size and time.
    assert window_digest(window(raw), root) != first
    assert digest_spans(spans, tmp_path) == digest_spans(spans, root)


def test_a_file_that_cannot_be_read_has_a_place_in_the_digest(tmp_path):
    (tmp_path / "2024-03-01.csv").write_text("u,i,t\na,b,1\n")
    gone = tmp_path / "2024-03-02.csv"
    gone.symlink_to(tmp_path / "nowhere")
    first = window_digest(window(tmp_path), tmp_path)
    gone.unlink()
    gone.write_text("u,i,t\na,b,1\n")
    assert window_digest(window(tmp_path), tmp_path) != first


def test_a_source_is_checked_span_by_span(tmp_path):
    from recsys.config import DataConfig

    (tmp_path / "2024-03-01.csv").write_text("u,i,t\na,b,1\n")
    (tmp_path / "2024-03-02.csv").write_text("")
    check_sources(DataConfig(interactions=window(tmp_path)))
    (tmp_path / "2024-03-03.csv").write_text("u,x,t\na,b,1\n")
    with pytest.raises(RecsysError, match=r"R262.*2024-03-03.*R203"):
        check_sources(DataConfig(interactions=window(tmp_path)))
    check_sources(DataConfig(interactions=window(tmp_path, bad_spans="set_aside")))


def test_days_without_a_file_are_missing_where_spans_are_days():
    assert missing_days([19_783, 19_784, 19_787]) == [19_785, 19_786]
    assert missing_days([7, 14, 21]) == []  # A file a week.


def test_spans_whose_files_are_gone_are_reported_within_the_window(tmp_path):
    names = "{SPAN}.csv"
    Seen(tmp_path, "earlier").remember([1, 2, 3, 4])
    spans = [Span(number, str(number), 0, (), ()) for number in (2, 5)]
    for newest, gone in ((None, [1, 3, 4]), (3, [3, 4]), (1, [])):
        config = window(tmp_path, names, spans=newest)
        told = report_window(spans, Seen(tmp_path, "now"), [0, 0], config)
        assert [one["span"] for one in told if one["state"] == "missing"] == gone
        assert all("are gone" in one["reason"] for one in told if one["span"] in gone)


def test_without_links_a_file_is_copied(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("text")

    def other_device(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_device)
    link(tmp_path / "a", tmp_path / "b" / "c")
    assert (tmp_path / "b" / "c").read_text() == "text"
    assert (tmp_path / "a").stat().st_nlink == 1


def test_old_and_unfinished_folders_go(tmp_path):
    for name in ("old", ".span-" + "0" * 32, ".config-of-theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text("x")
    ContentCache(tmp_path).remove_unfinished()
    assert sweep(tmp_path, [".config-of-theirs"], unused_for_s=-60.0) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == [".config-of-theirs"]
