"""The planted structure is really there, counted by hand from the files."""

from __future__ import annotations

import collections
import csv
import dataclasses
import math
import tracemalloc
from pathlib import Path

import pytest

from recsys.config.load import load_config
from recsys.errors import UsageError
from recsys.synth import SynthSummary, files, synthesize

USERS, ITEMS, INTERACTIONS = 3_000, 2_000, 100_000


@dataclasses.dataclass(frozen=True)
class Written:
    """The files as the csv module reads them, and what the writer said of them."""

    summary: SynthSummary
    events: list[tuple[str, str, int]]
    items: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    summary = synthesize(tmp_path_factory.mktemp("synth") / "data", USERS, ITEMS, INTERACTIONS, 7)
    return _read(summary)


def _read(summary: SynthSummary) -> Written:
    with summary.interactions.open(newline="") as file:
        rows = csv.DictReader(file)
        assert rows.fieldnames == ["user_id", "item_id", "timestamp"]
        events = [(row["user_id"], row["item_id"], int(row["timestamp"])) for row in rows]
    with summary.items.open(newline="") as file:
        items = {row["item_id"]: row for row in csv.DictReader(file)}
    return Written(summary, events, items)


def test_counts_are_exact_and_nothing_comes_twice(written: Written) -> None:
    assert len(written.events) == INTERACTIONS
    assert len({(user, item) for user, item, _ in written.events}) == INTERACTIONS
    assert {user for user, _, _ in written.events} == {f"u{n}" for n in range(1, USERS + 1)}
    assert set(written.items) == {f"i{n}" for n in range(1, ITEMS + 1)}
    assert {item for _, item, _ in written.events} <= set(written.items)


def test_timestamps_fill_the_year_2023(written: Written) -> None:
    times = [time for _, _, time in written.events]
    assert 1_672_531_200 <= min(times) < 1_672_531_200 + 86_400
    assert 1_704_067_200 - 86_400 <= max(times) < 1_704_067_200


def test_popularity_follows_a_power_law(written: Written) -> None:
    counts = sorted(collections.Counter(item for _, item, _ in written.events).values())[::-1]
    points = [(math.log(rank), math.log(counts[rank - 1])) for rank in range(20, 800)]
    slope, fit = _line(points)
    assert -1.2 < slope < -0.6
    assert fit > 0.95
    assert sum(counts[: ITEMS // 10]) > 0.35 * INTERACTIONS


def test_activity_has_a_heavy_tail(written: Written) -> None:
    counts = sorted(collections.Counter(user for user, _, _ in written.events).values())[::-1]
    median = counts[USERS // 2]
    assert counts[0] > 8 * median
    assert sum(counts[: USERS // 10]) > 0.25 * INTERACTIONS
    assert counts[-1] >= 1


def test_users_stay_in_two_clusters_mostly(written: Written) -> None:
    categories: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for user, item, _ in written.events:
        categories[user][written.items[item]["category"]] += 1
    active = [counts for counts in categories.values() if counts.total() >= 20]
    share = sum(sum(n for _, n in c.most_common(2)) / c.total() for c in active) / len(active)
    assert written.summary.n_clusters == 20
    # Two of twenty clusters hold a tenth of everything by chance.
    assert share > 0.65


def test_titles_and_categories_name_the_same_cluster(written: Written) -> None:
    categories_of_word = collections.defaultdict(set)
    for row in written.items.values():
        _, word, _ = row["title"].split(" ")
        categories_of_word[word].add(row["category"])
    assert all(len(categories) == 1 for categories in categories_of_word.values())
    assert len(categories_of_word) == 3 * 20


def test_clusters_rise_and_fall(written: Written) -> None:
    early, late = _first_and_last_quarter(written)
    first = [written.items[item]["category"] for item in early]
    last = [written.items[item]["category"] for item in late]
    assert _distance(first, last) > 0.05 > 2 * _distance(first[0::2], first[1::2])


def test_each_users_taste_moves(written: Written) -> None:
    by_user = collections.defaultdict(list)
    for user, item, time in written.events:
        by_user[user].append((time, written.items[item]["category"]))
    moved, noise = [], []
    for events in by_user.values():
        if len(events) < 60:
            continue
        ordered = [category for _, category in sorted(events)]
        third = len(ordered) // 3
        moved.append(_distance(ordered[:third], ordered[-third:]))
        noise.append(_distance(ordered[0::3][:third], ordered[1::3][:third]))
    assert len(moved) > 100
    assert sum(moved) / len(moved) > sum(noise) / len(noise) + 0.1


def test_cold_items_come_late_or_never(written: Written) -> None:
    first_seen: dict[str, int] = {}
    for _, item, time in written.events:
        first_seen[item] = min(time, first_seen.get(item, time))
    summary = written.summary
    assert summary.n_late_items == 200
    assert summary.n_never_items == 40
    assert summary.late_from >= summary.start + 0.8 * (summary.end - summary.start)
    assert 40 <= ITEMS - len(first_seen) <= 60
    late = [item for item, time in first_seen.items() if time >= summary.late_from]
    assert 150 <= len(late) <= 230
    # Late items are not the unpopular ones: one of them is taken often.
    counts = collections.Counter(item for _, item, _ in written.events)
    assert max(counts[item] for item in late) > 50


def test_some_users_join_late(written: Written) -> None:
    first_seen: dict[str, int] = {}
    for user, _, time in written.events:
        first_seen[user] = min(time, first_seen.get(user, time))
    span = written.summary.end - written.summary.start
    joined = [user for user, t in first_seen.items() if t > written.summary.start + 0.9 * span]
    assert 50 < len(joined) < 300


def test_equal_arguments_give_equal_files(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "same", tmp_path / "b" / "same", tmp_path / "c" / "same"]
    for folder, seed in zip(folders, (3, 3, 4), strict=True):
        synthesize(folder, users=50, items=100, interactions=900, seed=seed)
    for name in ("interactions.csv", "items.csv", "config.yaml"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    for name in ("interactions.csv", "items.csv"):
        assert (folders[0] / name).read_bytes() != (folders[2] / name).read_bytes()


@pytest.mark.parametrize(
    ("users", "items", "interactions"),
    [(1, 1, 1), (3, 1, 3), (1, 50, 44), (200, 100, 200 * 88), (100, 40, 7), (7, 3, 10)],
    ids=["one", "one-item", "one-user", "every-pair", "fewer-than-users", "tiny"],
)
def test_extreme_shapes_keep_the_promises(
    tmp_path: Path, users: int, items: int, interactions: int
) -> None:
    data = _read(synthesize(tmp_path / "out", users, items, interactions))
    assert len(data.events) == len({(u, i) for u, i, _ in data.events}) == interactions
    assert len(data.items) == items
    assert len({u for u, _, _ in data.events}) == min(users, interactions)


def test_memory_is_bounded_by_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK_ROWS", 10_000)

    def peak_bytes(interactions: int) -> int:
        tracemalloc.start()
        try:
            synthesize(tmp_path / str(interactions), 2_000, 2_000, interactions)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(1_000)  # Imports and caches.
    small, large = peak_bytes(30_000), peak_bytes(240_000)
    assert large < 1.5 * small
    # Two such columns of the larger data would need more.
    assert large < 240_000 * 8 * 2


def test_a_config_for_few_items_asks_for_no_more_than_there_are(tmp_path: Path) -> None:
    config = load_config(synthesize(tmp_path / "x y!", 20, 20, 100).config)
    assert config.evaluate.k == (10,)
    assert config.export.k == 10
    assert config.name == "synth-x-y-"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"users": 0}, "R701"),
        ({"items": 0}, "R701"),
        ({"interactions": 0}, "R701"),
        ({"interactions": -5}, "R701"),
        ({"users": 2**31}, "R701"),
        ({"seed": -1}, "R702"),
        ({"interactions": 10 * 88 + 1}, "R703"),
    ],
    ids=["users", "items", "interactions", "negative", "too-many", "seed", "more-than-pairs"],
)
def test_nonsense_is_refused_before_a_file_is_written(
    tmp_path: Path, arguments: dict[str, int], code: str
) -> None:
    usual = {"users": 10, "items": 100, "interactions": 100}
    with pytest.raises(UsageError) as caught:
        synthesize(tmp_path / "out", **{**usual, **arguments})
    assert caught.value.code == code
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(UsageError, match="R704"):
            synthesize(out, 10, 100, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def _first_and_last_quarter(written: Written) -> tuple[list[str], list[str]]:
    """Returns the items of the first and of the last quarter of the events."""
    items = [item for _, item, _ in sorted(written.events, key=lambda event: event[2])]
    return items[: len(items) // 4], items[-(len(items) // 4) :]


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns the slope of the least-squares line and its R²."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    return xy / xx, xy**2 / (xx * yy)


def _distance(left: list[str], right: list[str]) -> float:
    """Returns the total variation between two samples, in [0..1]."""
    a, b = collections.Counter(left), collections.Counter(right)
    return 0.5 * sum(abs(a[key] / len(left) - b[key] / len(right)) for key in {*a, *b})
