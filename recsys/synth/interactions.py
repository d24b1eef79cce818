"""Synthetic data of any size with planted structure, to try the pipeline without real data.

The structure is power-law popularity, taste clusters that show in a category and in title words,
drift of taste and popularity, items that come late or never, and heavy-tailed activity.
`docs/synth.md` has the constants.

Time runs from 0 to 1 until it is written. An item is its *rank* by base popularity; its cluster is
`rank % n_clusters`, so every cluster has the same share of head and tail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.errors import UsageError
from recsys.synth.files import (
    SPAN_S,
    START,
    check_arguments,
    config_name,
    ids,
    user_blocks,
    write_csv,
    write_items,
)

POPULARITY_EXPONENT = 1.1
POPULARITY_OFFSET = 1.0
TASTE_EXPONENT = 0.7
ACTIVITY_EXPONENT = 1.4
LATE_SHARE = 0.10
LATE_FROM = 0.80
NEVER_SHARE = 0.02
IN_TASTE_SHARE = 0.85
DRIFTING_SHARE = 0.5
JOINING_SHARE = 0.4
FADE = 0.35
NEVER = np.float32(2.0)

_MOST_CLUSTERS = 32
_LARGEST_SHARE_OF_ITEMS = 0.2
_ROUNDS_IN_TASTE = 40
_ROUNDS_ANYWHERE = 20
_ROUNDS_A_SORT = 4


@dataclasses.dataclass(frozen=True)
class SynthItems:
    """The catalogue by rank.

    Attributes:
        number: Number in the id of each item `[n]` int32, a permutation.
        release: Time at which each item appears `[n]` float32; 0: from the start, above 1: never.
        peak: Time of each item's peak demand `[n]` float32.
        n_clusters: Clusters of taste.
        cumulative: Cumulative popularity over the ranks of one cluster, float64.
    """

    number: np.ndarray
    release: np.ndarray
    peak: np.ndarray
    n_clusters: int
    cumulative: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    @property
    def from_start(self) -> np.ndarray:
        """Ranks of the items that exist from the start."""
        return np.flatnonzero(self.release == 0)

    def draw(self, cluster: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns a rank `[b]` int64 drawn by base popularity in each `cluster` `[b]`."""
        # Some clusters have one item less than the largest.
        size = (len(self) - 1 - cluster) // self.n_clusters + 1
        level = rng.random(len(cluster)) * self.cumulative[size - 1]
        # Rounding can reach the last level.
        local = np.minimum(np.searchsorted(self.cumulative, level, side="right"), size - 1)
        return local * self.n_clusters + cluster

    def wanted(self, rank: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Returns the share of its base popularity that each item has at `time` [0..1]."""
        fading = np.exp(-np.abs(time - self.peak[rank]) / FADE)
        return np.where(time >= self.release[rank], fading, 0.0)


@dataclasses.dataclass(frozen=True)
class SynthUsers:
    """The users by number.

    Attributes:
        n_events: Events of each user `[n]` int64.
        first_taste: Cluster that each user starts with `[n]` int32.
        second_taste: Cluster that each user also likes, and drifts to `[n]` int32.
        is_drifting: Whether each user's taste moves from the first to the second.
        joined: Time at which each user joins `[n]` float32.
    """

    n_events: np.ndarray
    first_taste: np.ndarray
    second_taste: np.ndarray
    is_drifting: np.ndarray
    joined: np.ndarray

    def draw_cluster(
        self, user: np.ndarray, time: np.ndarray, n_clusters: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Returns a cluster `[b]` int64 drawn for each `user` `[b]` at `time` `[b]`."""
        share_of_first = np.where(self.is_drifting[user], 1.0 - time, 0.75)
        first = rng.random(len(user)) < share_of_first
        taste = np.where(first, self.first_taste[user], self.second_taste[user])
        elsewhere = rng.integers(0, n_clusters, len(user))
        return np.where(rng.random(len(user)) < IN_TASTE_SHARE, taste, elsewhere)


def count_special(n_items: int) -> tuple[int, int]:
    """Returns the numbers of items that never appear, and that appear only in the last part."""
    return int(n_items * NEVER_SHARE), int(n_items * LATE_SHARE)


def make_items(n: int, rng: np.random.Generator) -> SynthItems:
    """Returns a catalogue of `n` items."""
    n_clusters = min(n, max(2, min(_MOST_CLUSTERS, n // 100)))
    n_never, n_late = count_special(n)
    release = np.zeros(n, np.float32)
    special = rng.choice(n, n_never + n_late, replace=False)
    release[special[:n_never]] = NEVER
    release[special[n_never:]] = rng.uniform(LATE_FROM, 0.98, n_late)
    ranks = np.arange(-(-n // n_clusters))
    return SynthItems(
        number=rng.permutation(n).astype(np.int32),
        release=release,
        # Demand for a late item peaks when it is new.
        peak=np.where(release > 0, release, rng.random(n, np.float32)).astype(np.float32),
        n_clusters=n_clusters,
        cumulative=np.cumsum((ranks + POPULARITY_OFFSET) ** -POPULARITY_EXPONENT),
    )


def make_users(n: int, n_events: int, items: SynthItems, rng: np.random.Generator) -> SynthUsers:
    """Returns `n` users who share `n_events` events, each with a limited number of items.

    Args:
        n: Number of users.
        n_events: Number of events of all users.
        items: The catalogue; users can take all items that exist from the start.
        rng: Random generator.
    """
    # Users start in clusters with low numbers and drift to high ones: the former fall and the
    # latter rise over time.
    liked = (np.arange(items.n_clusters) + 2.0) ** -TASTE_EXPONENT
    first = rng.choice(items.n_clusters, n, p=liked / liked.sum())
    rising = np.sqrt(rng.random(n)) * items.n_clusters
    joins = rng.random(n) < JOINING_SHARE
    return SynthUsers(
        n_events=share_out(n, n_events, len(items.from_start), rng),
        first_taste=first.astype(np.int32),
        second_taste=np.minimum(rising, items.n_clusters - 1).astype(np.int32),
        is_drifting=rng.random(n) < DRIFTING_SHARE,
        joined=np.where(joins, rng.uniform(0.0, 0.97, n), 0.0).astype(np.float32),
    )


def share_out(n: int, n_events: int, n_items: int, rng: np.random.Generator) -> np.ndarray:
    """Returns heavy-tailed counts `[n]` int64 that sum to `n_events`, each at most `n_items`.

    Each user gets one event first, if there are enough.
    """
    at_most = min(n_items, max(int(n_items * _LARGEST_SHARE_OF_ITEMS), -(-2 * n_events // n)))
    weight = 1.0 + rng.pareto(ACTIVITY_EXPONENT, n)
    counts = np.full(n, 1 if n_events >= n else 0, np.int64)
    while (left := n_events - int(counts.sum())) > 0:
        open_ = np.flatnonzero(counts < at_most)
        ideal = left * (weight[open_] / weight[open_].sum())
        more = np.minimum(ideal.astype(np.int64), at_most - counts[open_])
        if not more.any():
            # Less than one each is left: one more for a random part of them.
            open_ = rng.choice(open_, min(left, len(open_)), replace=False)
            more = np.ones(len(open_), np.int64)
        counts[open_] += more
    return counts


def draw_events(
    items: SynthItems, users: SynthUsers, first: int, last: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws all events of the users `first` … `last` - 1.

    Args:
        items: The catalogue.
        users: The users.
        first: First user of the block.
        last: End of the block, exclusive.
        rng: Random generator of this block.

    Returns:
        User `[n]` int64, rank of the item `[n]` int64 and time `[n]` float64 in [0..1), sorted by
        user and time; no user has an item twice.
    """
    user = np.repeat(np.arange(first, last), users.n_events[first:last])
    joined = users.joined[user].astype(np.float64)
    time = joined + (1.0 - joined) * rng.random(len(user))
    time = time[np.lexsort((time, user))]
    rank = np.full(len(user), -1, np.int64)
    todo = np.arange(len(user))
    for round_ in range(_ROUNDS_IN_TASTE + _ROUNDS_ANYWHERE):
        if len(todo) == 0:
            break
        if round_ < _ROUNDS_IN_TASTE:
            cluster = users.draw_cluster(user[todo], time[todo], items.n_clusters, rng)
        else:
            cluster = rng.integers(0, items.n_clusters, len(todo))
        drawn = items.draw(cluster, rng)
        accepted = rng.random(len(todo)) < items.wanted(drawn, time[todo])
        rank[todo[accepted]] = drawn[accepted]
        todo = todo[~accepted]
        # Finding repeats sorts the whole block, so it is not done in every round.
        if len(todo) == 0 or round_ % _ROUNDS_A_SORT == _ROUNDS_A_SORT - 1:
            rank[repeated(user - first, rank, len(items))] = -1
            todo = np.flatnonzero(rank < 0)
    # Users who have nearly all items would draw repeats again and again: they get the rest from a
    # permutation. Items from the start suffice.
    for owner in np.unique(user[todo]):
        start, end = np.searchsorted(user, [owner, owner + 1])
        mine = todo[(todo >= start) & (todo < end)]
        free = np.setdiff1d(items.from_start, rank[start:end])
        rank[mine] = rng.choice(free, len(mine), replace=False)
    return user, rank, time


def repeated(user: np.ndarray, rank: np.ndarray, n_items: int) -> np.ndarray:
    """Returns the events `[m]` whose user has the same item in an earlier event."""
    taken = np.flatnonzero(rank >= 0)
    keys = user[taken] * n_items + rank[taken]
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    return taken[order[same]]


# --- files


@dataclasses.dataclass(frozen=True)
class SynthSummary:
    """Result of `synthesize`.

    Attributes:
        interactions: CSV of `user_id,item_id,timestamp`, by user and time.
        items: CSV of `item_id,title,category`.
        config: Config that `recsys run` accepts as it is.
        n_users: Users.
        n_items: Items of the catalogue.
        n_interactions: Rows of `interactions`.
        n_clusters: Clusters of taste; as many categories.
        n_late_items: Items that appear in the last part of the time only.
        n_never_items: Items that never appear.
        late_from: No late item appears before [seconds since 1970, UTC].
        start: First possible timestamp [seconds since 1970, UTC].
        end: End of the timestamps, exclusive [seconds since 1970, UTC].
    """

    interactions: Path
    items: Path
    config: Path
    n_users: int
    n_items: int
    n_interactions: int
    n_clusters: int
    n_late_items: int
    n_never_items: int
    late_from: int
    start: int
    end: int


def synthesize(out: Path, users: int, items: int, interactions: int, seed: int = 0) -> SynthSummary:
    """Writes data with planted structure into the folder `out`.

    Equal arguments give equal files. Memory grows with users and items (about 40
    and 20 bytes each), not with interactions.

    Args:
        out: Folder, empty or not existing.
        users: Number of users; each has an event if there are enough events.
        items: Items of the catalogue.
        interactions: Number of interactions; no pair of user and item occurs twice.
        seed: Seed of everything.

    Raises:
        UsageError: The numbers are impossible, or `out` is not empty.
    """
    check_arguments(out, seed, users=users, items=items, interactions=interactions)
    _check_possible(users, items, interactions)
    catalogue_seed, users_seed, text_seed, *_ = (root := np.random.SeedSequence(seed)).spawn(3)
    catalogue = make_items(items, np.random.default_rng(catalogue_seed))
    people = make_users(users, interactions, catalogue, np.random.default_rng(users_seed))
    out.mkdir(parents=True, exist_ok=True)
    summary = _summarize(out, people, catalogue)
    cluster = np.argsort(catalogue.number) % catalogue.n_clusters
    write_items(summary.items, cluster, np.random.default_rng(text_seed))
    write_csv(summary.interactions, _interactions(catalogue, people, root))
    summary.config.write_text(_config_text(out, items, interactions))
    return summary


def _check_possible(users: int, items: int, interactions: int) -> None:
    possible = users * (items - sum(count_special(items)))
    if interactions > possible:
        raise UsageError(
            "R703",
            "A user interacts with an item at most once, and only initial items count:"
            f" {users:,} users and {items:,} items allow {possible:,} interactions.",
            "Ask for fewer interactions, or for more users or items.",
            interactions,
        )


def _summarize(out: Path, users: SynthUsers, items: SynthItems) -> SynthSummary:
    late = items.release[(items.release > 0) & (items.release <= 1)]
    return SynthSummary(
        interactions=out / "interactions.csv",
        items=out / "items.csv",
        config=out / "config.yaml",
        n_users=len(users.n_events),
        n_items=len(items),
        n_interactions=int(users.n_events.sum()),
        n_clusters=items.n_clusters,
        n_late_items=len(late),
        n_never_items=count_special(len(items))[0],
        late_from=START + int(SPAN_S * float(late.min())) if len(late) else START + SPAN_S,
        start=START,
        end=START + SPAN_S,
    )


def _interactions(
    items: SynthItems, users: SynthUsers, root: np.random.SeedSequence
) -> Iterator[pa.RecordBatch]:
    for first, last, rng in user_blocks(users.n_events, root):
        user, rank, time = draw_events(items, users, first, last, rng)
        yield pa.record_batch(
            {
                "user_id": ids("u", user),
                "item_id": ids("i", items.number[rank]),
                "timestamp": pa.array(START + (time * SPAN_S).astype(np.int64)),
            }
        )


def _config_text(out: Path, n_items: int, n_interactions: int) -> str:
    ks = [k for k in (10, 50, 100) if k < n_items] or [1]
    # Batches grow with the data so that a run has thousands of steps, not millions.
    batch_size = min(4096, max(128, 2 ** (n_interactions // 800).bit_length()))
    epochs = 8 if n_interactions <= 1_000_000 else 2
    return f"""\
# Written by recsys synth. recsys run {out.resolve().name}/config.yaml
name: {config_name(out)}
root: run

data:
  interactions:
    files: interactions.csv
    columns: {{user: user_id, item: item_id, timestamp: timestamp}}
  items:
    files: items.csv
    columns: {{item: item_id, title: title}}
    features:
      - {{name: category, column: category, kind: categories}}
      - {{name: title_words, column: title, kind: words, min_count: 2}}
  eval_share: 0.1

model: {{dim: 32, feature_dim: 16, history: 20, widths: [64], temperature: 0.15}}
train: {{batch_size: {batch_size}, epochs: {epochs}}}
evaluate: {{k: {ks}, query: each_moment}}
bless: {{metric: recall@{ks[0]}, over: {{popularity: 1.1}}}}
export: {{k: {ks[-1]}}}
"""
