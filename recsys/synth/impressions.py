"""Impressions of a synthetic world in which the probability of every label is known.

An impression shows a user several items. Each is clicked with a probability, and bought with
another if it is clicked. The log odds of a click are a sum of

- the appeal of the item and the eagerness of the user,
- the product of their factors, which follow mostly from segment and category,
- effects of device and hour on each category,
- the position: what is lower down is seen less.

The system that showed the items knew something of the taste: better ones are higher up. So the
position is confounded with the item, as in the log of a live system. `docs/synth.md` has the
constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.errors import UsageError
from recsys.synth.files import (
    CATEGORIES,
    SPAN_S,
    START,
    check_arguments,
    config_name,
    ids,
    user_blocks,
    write_csv,
    write_items,
)
from recsys.synth.interactions import JOINING_SHARE, repeated, share_out

SHOWN = 10  # Items of an impression.
FACTORS = 4  # Factors of a user and of an item.
OWN_SHARE = 0.35  # Share of the factors' variance that segment and category don't explain.

# Log odds of a click; standard deviations of random effects.
CLICK = -0.9  # Mean at the first position.
AFFINITY = 1.3  # Product of the factors of user and item.
APPEAL = 0.5  # Item.
EAGERNESS = 0.4  # User.
DEVICE = 0.6  # Device and category.
HOUR = 0.6  # Amplitude of hour and category.
POSITION = -0.35  # Each doubling of the position, counted from 1.

# Log odds of a purchase after a click.
BUY = -1.5  # Mean.
FRUGALITY = 0.8  # Highest weight of the price in a segment.

POLICY_NOISE = 2.5  # Standard deviation of the noise by which the shown items are ordered.
POPULARITY_EXPONENT = 0.6  # Exponent of the power law by which items are shown.
DEVICES = ("phone", "tablet", "desktop")

_SEGMENTS, _MOST_CATEGORIES = 12, 16
_DAY_S, _HOUR_S = 86_400, 3_600
_PROFILE = 1.2 + np.cos(2 * np.pi * (np.arange(24) - 20) / 24)  # Most is shown in the evening.
_DEVICE_SHARES = np.array([[0.6, 0.15, 0.25], [0.35, 0.1, 0.55]])
"""Shares of the devices outside and in working hours."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """Items that were shown, by row.

    Attributes:
        impression: Number of the impression `[n]` int64.
        user: Number of the user `[n]` int64.
        item: Number of the item `[n]` int64.
        time: Time [seconds since 1970, UTC] `[n]` int64.
        device: Index of the device in `DEVICES` `[n]` int64.
        position: Position in the impression, from 0 on `[n]` int64.
    """

    impression: np.ndarray
    user: np.ndarray
    item: np.ndarray
    time: np.ndarray
    device: np.ndarray
    position: np.ndarray

    @property
    def hour(self) -> np.ndarray:
        """Hour of the day, UTC `[n]` int64."""
        return self.time % _DAY_S // _HOUR_S


@dataclasses.dataclass(frozen=True)
class ImpressionsWorld:
    """Users, items, and what a label of their pairs depends on.

    Attributes:
        segment: Segment of each user `[users]`.
        user_factors: Factors of each user `[users, FACTORS]`.
        eagerness: Log odds of a click of each user `[users]`.
        frugality: Weight of the price in each user's log odds of a purchase `[users]`.
        joined: Time at which each user joins `[users]` [0..1].
        category: Category of each item `[items]`.
        item_factors: Factors of each item `[items, FACTORS]`.
        appeal: Log odds of a click of each item `[items]`.
        price: Logarithm of each item's price, standardised `[items]`.
        popularity: Cumulative weight of the items when they are drawn `[items]`.
        of_device: Log odds of a click by device and category `[devices, categories]`.
        peak: Hour at which a category is clicked most `[categories]`.
    """

    segment: np.ndarray
    user_factors: np.ndarray
    eagerness: np.ndarray
    frugality: np.ndarray
    joined: np.ndarray
    category: np.ndarray
    item_factors: np.ndarray
    appeal: np.ndarray
    price: np.ndarray
    popularity: np.ndarray
    of_device: np.ndarray
    peak: np.ndarray

    @classmethod
    def drawn(cls, users: int, items: int, rng: np.random.Generator) -> ImpressionsWorld:
        """Returns a world drawn at random."""
        n_categories = min(items, _MOST_CATEGORIES, len(CATEGORIES))
        segment = rng.integers(0, _SEGMENTS, users)
        category = np.arange(items) % n_categories
        joins = rng.random(users) < JOINING_SHARE
        weight = (1.0 + rng.permutation(items)) ** -POPULARITY_EXPONENT
        return cls(
            segment=segment,
            user_factors=_factors(segment, _SEGMENTS, rng),
            eagerness=EAGERNESS * rng.standard_normal(users),
            frugality=FRUGALITY * rng.random(_SEGMENTS)[segment],
            joined=np.where(joins, rng.uniform(0.0, 0.97, users), 0.0),
            category=category,
            item_factors=_factors(category, n_categories, rng),
            appeal=APPEAL * rng.standard_normal(items),
            price=rng.standard_normal(items),
            popularity=np.cumsum(weight) / weight.sum(),
            of_device=DEVICE * rng.standard_normal((len(DEVICES), n_categories)),
            peak=24 * rng.random(n_categories),
        )

    def affinity(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Returns the log odds that the factors of users and items add `[n]`."""
        product = np.einsum("nd,nd->n", self.user_factors[user], self.item_factors[item])
        return AFFINITY / np.sqrt(FACTORS) * product

    def click(self, shown: Shown, position: np.ndarray | int | None = None) -> np.ndarray:
        """Returns the probability of a click `[n]`, by default at the position of each row."""
        position = shown.position if position is None else position
        category = self.category[shown.item]
        hours = 2 * np.pi * (shown.hour - self.peak[category]) / 24
        context = self.of_device[shown.device, category] + HOUR * np.cos(hours)
        own = self.eagerness[shown.user] + self.appeal[shown.item]
        place = POSITION * np.log2(1.0 + position)
        return _sigmoid(CLICK + own + self.affinity(shown.user, shown.item) + context + place)

    def buy(self, shown: Shown) -> np.ndarray:
        """Returns the probability of a purchase after a click `[n]`."""
        price = self.frugality[shown.user] * self.price[shown.item]
        return _sigmoid(BUY + 0.5 * self.affinity(shown.user, shown.item) - price)

    def show(self, impressions: np.ndarray, rng: np.random.Generator) -> Shown:
        """Draws impressions of one user each `[m]`; returns `SHOWN` rows of each."""
        n, items = len(impressions), len(self.category)
        joined = self.joined[impressions]
        day = ((joined + (1.0 - joined) * rng.random(n)) * (SPAN_S // _DAY_S)).astype(np.int64)
        hour = rng.choice(24, n, p=_PROFILE / _PROFILE.sum())
        is_work = (hour >= 8) & (hour < 18)
        shares = _DEVICE_SHARES[is_work.astype(int)].cumsum(axis=1)
        device = (rng.random(n)[:, None] > shares[:, :-1]).sum(axis=1)
        time = START + day * _DAY_S + hour * _HOUR_S + rng.integers(0, _HOUR_S, n)
        row = np.repeat(np.arange(n), SHOWN)
        item, todo = np.full(len(row), -1), np.arange(len(row))
        while len(todo):
            drawn = np.searchsorted(self.popularity, rng.random(len(todo)), side="right")
            item[todo] = np.minimum(drawn, items - 1)
            todo = repeated(row, item, items)
        user = impressions[row]
        liking = self.affinity(user, item) + self.appeal[item]
        liking += POLICY_NOISE * rng.standard_normal(len(row))
        order = np.lexsort((-liking, row))
        position = np.tile(np.arange(SHOWN), n)
        return Shown(row, user, item[order], time[row], device[row], position)


def _factors(group: np.ndarray, n_groups: int, rng: np.random.Generator) -> np.ndarray:
    """Returns factors `[n, FACTORS]` of variance 1, which follow in part from the group."""
    centres = rng.standard_normal((n_groups, FACTORS))
    own = rng.standard_normal((len(group), FACTORS))
    return np.sqrt(1 - OWN_SHARE) * centres[group] + np.sqrt(OWN_SHARE) * own


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# --- files


@dataclasses.dataclass(frozen=True)
class ImpressionsSummary:
    """Result of `synthesize_impressions`.

    Attributes:
        impressions: CSV of the items shown: `impression_id,user_id,item_id,timestamp,position,
            device,clicked,bought`, by user.
        items: CSV of `item_id,title,category,price`.
        users: CSV of `user_id,segment`.
        probabilities: CSV of the true probabilities of each row of `impressions`, in its order:
            `impression_id,item_id,click,click_first,buy`. `click` is the probability at its
            position, `click_first` at position 0; `buy` is the probability after a click. The
            config doesn't read it.
        config: Config that `recsys run` accepts as it is.
        n_users: Users.
        n_items: Items of the catalogue.
        n_impressions: Impressions.
        n_rows: Rows of `impressions`.
        n_clicks: Clicked rows.
        n_purchases: Bought rows.
    """

    impressions: Path
    items: Path
    users: Path
    probabilities: Path
    config: Path
    n_users: int
    n_items: int
    n_impressions: int
    n_rows: int
    n_clicks: int
    n_purchases: int


def synthesize_impressions(
    out: Path, users: int, items: int, impressions: int, seed: int = 0
) -> ImpressionsSummary:
    """Writes impressions with known probabilities of labels into the folder `out`.

    Equal arguments give equal files. Memory grows with users and items, not with impressions.

    Args:
        out: Folder, empty or not existing.
        users: Number of users; each has an impression if there are enough.
        items: Items of the catalogue; at least 20.
        impressions: Number of impressions, of 10 items each.
        seed: Seed of everything.

    Raises:
        UsageError: The numbers are impossible, or `out` is not empty.
    """
    check_arguments(out, seed, users=users, items=items, impressions=impressions)
    if items < 2 * SHOWN:
        rule = f"Impressions of {SHOWN} items need at least {2 * SHOWN} items."
        raise UsageError("R703", rule, f"Ask for more items: --items {100 * SHOWN}.", items)
    world_seed, counts_seed, text_seed, *_ = (root := np.random.SeedSequence(seed)).spawn(3)
    world = ImpressionsWorld.drawn(users, items, np.random.default_rng(world_seed))
    most = 50 * (impressions // users + 1)
    counts = share_out(users, impressions, most, np.random.default_rng(counts_seed))
    out.mkdir(parents=True, exist_ok=True)
    files = {name: out / f"{name}.csv" for name in ("impressions", "items", "users")}
    truth, config = out / "probabilities.csv", out / "config.yaml"
    price = np.round(20 * np.exp(0.7 * world.price), 2)
    write_items(files["items"], world.category, np.random.default_rng(text_seed), price=price)
    segments = pa.array([f"s{number + 1}" for number in range(_SEGMENTS)])
    people = {"user_id": ids("u", np.arange(users)), "segment": segments.take(world.segment)}
    write_csv(files["users"], iter([pa.record_batch(people)]))
    totals = np.zeros(2, np.int64)

    def blocks() -> Iterator[pa.RecordBatch]:
        for rows in _rows(world, counts, root):
            totals[:] += [rows.column(name).to_numpy().sum() for name in ("clicked", "bought")]
            yield rows.select(_COLUMNS)

    write_csv(files["impressions"], blocks())
    # The same blocks again, so that no more than one is in memory.
    write_csv(truth, (rows.select(_TRUTH) for rows in _rows(world, counts, root)))
    config.write_text(_config_text(out))
    return ImpressionsSummary(
        impressions=files["impressions"],
        items=files["items"],
        users=files["users"],
        probabilities=truth,
        config=config,
        n_users=users,
        n_items=items,
        n_impressions=impressions,
        n_rows=impressions * SHOWN,
        n_clicks=int(totals[0]),
        n_purchases=int(totals[1]),
    )


_COLUMNS = [
    *("impression_id", "user_id", "item_id", "timestamp", "position", "device"),
    *("clicked", "bought"),
]
_TRUTH = ["impression_id", "item_id", "click", "click_first", "buy"]


def _rows(
    world: ImpressionsWorld, counts: np.ndarray, root: np.random.SeedSequence
) -> Iterator[pa.RecordBatch]:
    """Yields the rows, with labels and their probabilities, in blocks of users."""
    done = 0
    for first, last, rng in user_blocks(counts * SHOWN, root):
        shown = world.show(np.repeat(np.arange(first, last), counts[first:last]), rng)
        click, buy = world.click(shown), world.buy(shown)
        clicked = rng.random(len(click)) < click
        columns = {
            "impression_id": ids("x", done + shown.impression),
            "user_id": ids("u", shown.user),
            "item_id": ids("i", shown.item),
            "timestamp": pa.array(shown.time),
            "position": pa.array(shown.position),
            "device": pa.array(DEVICES).take(pa.array(shown.device)),
            "clicked": pa.array(clicked.astype(np.int64)),
            "bought": pa.array((clicked & (rng.random(len(buy)) < buy)).astype(np.int64)),
            "click": pa.array(np.round(click, 6)),
            "click_first": pa.array(np.round(world.click(shown, position=0), 6)),
            "buy": pa.array(np.round(buy, 6)),
        }
        done += int(counts[first:last].sum())
        yield pa.record_batch(columns)


def _config_text(out: Path) -> str:
    return f"""\
# Written by recsys synth. recsys run {out.resolve().name}/config.yaml
name: {config_name(out)}
root: run
task: ranking

data:
  interactions:
    files: impressions.csv
    columns:
      user: user_id
      item: item_id
      timestamp: timestamp
      impression: impression_id
      position: position
    labels:
      click: {{column: clicked, at_least: 1}}
      buy: {{column: bought, at_least: 1, given: click}}
    positive: click
    features:
      - {{name: device, column: device, kind: category, context: true}}
      - {{name: hour, column: timestamp, kind: hour, context: true}}
  items:
    files: items.csv
    columns: {{item: item_id, title: title}}
    features:
      - {{name: category, column: category, kind: category}}
      - {{name: price, column: price, kind: number}}
  users:
    files: users.csv
    columns: {{user: user_id}}
    features:
      - {{name: user_segment, column: segment, kind: category}}
  eval_share: 0.1
"""
