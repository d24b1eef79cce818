"""Writes the planted world as files: interactions, catalogue and a config that runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from recsys.errors import UsageError
from recsys.synth.world import (
    SynthItems,
    SynthUsers,
    count_special,
    draw_events,
    make_items,
    make_users,
)

START = 1_672_531_200  # 2023-01-01T00:00:00Z
SPAN_S = 365 * 86_400
CHUNK_ROWS = 250_000

_LARGEST = 2**31 - 2

_THEMES = """
sea/Harbour/Tide/Sailor mountain/Summit/Glacier/Ridge space/Orbit/Comet/Starship
crime/Detective/Alibi/Heist romance/Letter/Wedding/Kiss horror/Crypt/Shadow/Scream
war/Trench/Bunker/Convoy music/Sonata/Chorus/Drummer sport/Striker/Marathon/Goalpost
cooking/Kitchen/Recipe/Oven garden/Orchard/Rosebush/Meadow magic/Wizard/Spell/Dragon
school/Teacher/Homework/Campus railway/Locomotive/Platform/Signalman
flight/Pilot/Runway/Propeller desert/Dune/Caravan/Oasis jungle/Jaguar/Liana/Parrot
polar/Icebreaker/Penguin/Aurora robots/Android/Circuit/Engine spies/Agent/Cipher/Embassy
law/Verdict/Juror/Courtroom medicine/Surgeon/Ward/Remedy history/Empire/Castle/Monarch
western/Saloon/Sheriff/Prairie theatre/Curtain/Actress/Rehearsal
painting/Canvas/Portrait/Fresco chess/Gambit/Bishop/Checkmate animals/Otter/Badger/Falcon
city/Avenue/Rooftop/Subway farm/Barn/Tractor/Harvest money/Banker/Ledger/Fortune
puzzles/Labyrinth/Riddle/Jigsaw
"""
_CATEGORIES, *_WORDS = zip(*(theme.split("/") for theme in _THEMES.split()), strict=True)
"""Theme of each cluster, and three title words of it; no two themes share a word."""
_ADJECTIVES = (
    "Quiet", "Golden", "Broken", "Hidden", "Northern", "Electric", "Velvet", "Distant",
    "Crooked", "Silver", "Restless", "Burning", "Forgotten", "Hollow", "Painted", "Midnight",
    "Paper", "Second", "Lonely", "Wild", "Frozen", "Borrowed", "Secret", "Last",
)  # fmt: skip
"""Title words that are independent of the cluster."""


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
    _check(out, users, items, interactions, seed)
    catalogue_seed, users_seed, text_seed, *_ = (root := np.random.SeedSequence(seed)).spawn(3)
    catalogue = make_items(items, np.random.default_rng(catalogue_seed))
    people = make_users(users, interactions, catalogue, np.random.default_rng(users_seed))
    out.mkdir(parents=True, exist_ok=True)
    summary = _summarize(out, people, catalogue)
    _write_items(summary.items, catalogue, np.random.default_rng(text_seed))
    _write_csv(summary.interactions, _interactions(catalogue, people, root))
    summary.config.write_text(_config_text(out.resolve().name, items, interactions))
    return summary


def _check(out: Path, users: int, items: int, interactions: int, seed: int) -> None:
    for name, value in (("users", users), ("items", items), ("interactions", interactions)):
        if not 1 <= value <= (_LARGEST if name != "interactions" else 2**62):
            raise UsageError(
                "R701",
                f"The number of {name} must be at least 1 and fit a table.",
                f"Name a number: --{name} 1000.",
                value,
            )
    if seed < 0:
        raise UsageError("R702", "The seed must be 0 or more.", "Try --seed 0.", seed)
    possible = users * (items - sum(count_special(items)))
    if interactions > possible:
        raise UsageError(
            "R703",
            "A user interacts with an item at most once, and only initial items count:"
            f" {users:,} users and {items:,} items allow {possible:,} interactions.",
            "Ask for fewer interactions, or for more users or items.",
            interactions,
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            "R704",
            "The folder for the data must be empty or must not exist.",
            "Name another folder with --out, or empty this one.",
            str(out),
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
    seed = [int(word) for word in root.generate_state(4)]
    for first, last in _user_blocks(users.n_events):
        # Each block has its own seed, so it doesn't depend on earlier blocks.
        rng = np.random.default_rng([*seed, first])
        user, rank, time = draw_events(items, users, first, last, rng)
        yield pa.record_batch(
            {
                "user_id": _ids("u", user),
                "item_id": _ids("i", items.number[rank]),
                "timestamp": pa.array(START + (time * SPAN_S).astype(np.int64)),
            }
        )


def _user_blocks(n_events: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields blocks of users with about `CHUNK_ROWS` events together."""
    ends = np.cumsum(n_events)
    first, done = 0, 0
    while first < len(n_events):
        last = max(first + 1, int(np.searchsorted(ends, done + CHUNK_ROWS, side="right")))
        yield first, last
        first, done = last, int(ends[last - 1])


def _write_items(path: Path, items: SynthItems, rng: np.random.Generator) -> None:
    rank_of = np.argsort(items.number)
    categories, adjectives = pa.array(_CATEGORIES), pa.array(_ADJECTIVES)
    words = pa.array([word for three in zip(*_WORDS, strict=True) for word in three])

    def batch(start: int) -> pa.RecordBatch:
        number = np.arange(start, min(start + CHUNK_ROWS, len(items)))
        cluster = rank_of[number] % items.n_clusters
        adjective = adjectives.take(pa.array(rng.integers(0, len(_ADJECTIVES), len(number))))
        word = words.take(pa.array(cluster * 3 + rng.integers(0, 3, len(number))))
        title = pc.binary_join_element_wise(
            adjective, word, pa.array(number + 1).cast(pa.string()), " "
        )
        return pa.record_batch(
            {
                "item_id": _ids("i", number),
                "title": title,
                "category": categories.take(pa.array(cluster)),
            }
        )

    _write_csv(path, (batch(start) for start in range(0, len(items), CHUNK_ROWS)))


def _ids(prefix: str, numbers: np.ndarray) -> pa.Array:
    text = pa.array(numbers.astype(np.int64) + 1).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(prefix), text, "")


def _write_csv(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Writes batches one by one; no value needs quotes."""
    first = next(batches)
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    with path.open("wb") as file:
        file.write((",".join(first.schema.names) + "\n").encode())
        with pyarrow.csv.CSVWriter(file, first.schema, write_options=options) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


def _config_text(folder: str, n_items: int, n_interactions: int) -> str:
    name = "synth-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in folder.lower())
    ks = [k for k in (10, 50, 100) if k < n_items] or [1]
    # Batches grow with the data so that a run has thousands of steps, not millions.
    batch_size = min(4096, max(128, 2 ** (n_interactions // 800).bit_length()))
    epochs = 8 if n_interactions <= 1_000_000 else 2
    return f"""\
# Written by recsys synth. recsys run {folder}/config.yaml
name: {name[:60]}
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
