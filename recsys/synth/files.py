"""Shared parts of synthetic data: arguments, ids, names, and CSV files in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from recsys.errors import UsageError

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
CATEGORIES, *_WORDS = zip(*(theme.split("/") for theme in _THEMES.split()), strict=True)
"""Theme of each cluster, and three title words of it; no two themes share a word."""
_ADJECTIVES = (
    "Quiet", "Golden", "Broken", "Hidden", "Northern", "Electric", "Velvet", "Distant",
    "Crooked", "Silver", "Restless", "Burning", "Forgotten", "Hollow", "Painted", "Midnight",
    "Paper", "Second", "Lonely", "Wild", "Frozen", "Borrowed", "Secret", "Last",
)  # fmt: skip
"""Title words that are independent of the cluster."""


def check_arguments(out: Path, seed: int, **counts: int) -> None:
    """Checks that all counts are possible and that `out` is a new or an empty folder.

    Raises:
        UsageError: One is not.
    """
    for name, value in counts.items():
        if not 1 <= value <= (_LARGEST if name in ("users", "items") else 2**62):
            raise UsageError(
                "R701",
                f"The number of {name} must be at least 1 and fit a table.",
                f"Name a number: --{name} 1000.",
                value,
            )
    if seed < 0:
        raise UsageError("R702", "The seed must be 0 or more.", "Try --seed 0.", seed)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            "R704",
            "The folder for the data must be empty or must not exist.",
            "Name another folder with --out, or empty this one.",
            str(out),
        )


def config_name(folder: Path) -> str:
    """Returns the name of the pipeline of the data in a folder."""
    words = (c if c.isascii() and c.isalnum() else "-" for c in folder.resolve().name.lower())
    return f"synth-{''.join(words)}"[:60]


def user_blocks(
    n_events: np.ndarray, root: np.random.SeedSequence
) -> Iterator[tuple[int, int, np.random.Generator]]:
    """Yields blocks of users with about `CHUNK_ROWS` events together.

    Each has its own random generator, so it doesn't depend on earlier blocks.
    """
    ends, seed = np.cumsum(n_events), [int(word) for word in root.generate_state(4)]
    first, done = 0, 0
    while first < len(n_events):
        last = max(first + 1, int(np.searchsorted(ends, done + CHUNK_ROWS, side="right")))
        yield first, last, np.random.default_rng([*seed, first])
        first, done = last, int(ends[last - 1])


def ids(prefix: str, numbers: np.ndarray) -> pa.Array:
    """Returns ids `[n]` text of numbers from 0 on: the prefix and the number, from 1 on."""
    text = pa.array(numbers.astype(np.int64) + 1).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(prefix), text, "")


def write_csv(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Writes batches one by one; no value needs quotes."""
    first = next(batches)
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    with path.open("wb") as file:
        file.write((",".join(first.schema.names) + "\n").encode())
        with pyarrow.csv.CSVWriter(file, first.schema, write_options=options) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


def write_items(
    path: Path, cluster: np.ndarray, rng: np.random.Generator, **more: np.ndarray
) -> None:
    """Writes the CSV of the items.

    Args:
        path: File to write.
        cluster: Cluster of each item `[n]`, which its category and a word of its title name.
        rng: Random generator of the titles.
        **more: Further columns `[n]`.
    """
    categories, adjectives = pa.array(CATEGORIES), pa.array(_ADJECTIVES)
    words = pa.array([word for three in zip(*_WORDS, strict=True) for word in three])

    def batch(start: int) -> pa.RecordBatch:
        number = np.arange(start, min(start + CHUNK_ROWS, len(cluster)))
        adjective = adjectives.take(pa.array(rng.integers(0, len(_ADJECTIVES), len(number))))
        word = words.take(pa.array(cluster[number] * 3 + rng.integers(0, 3, len(number))))
        title = pc.binary_join_element_wise(
            adjective, word, pa.array(number + 1).cast(pa.string()), " "
        )
        return pa.record_batch(
            {
                "item_id": ids("i", number),
                "title": title,
                "category": categories.take(pa.array(cluster[number])),
                **{name: pa.array(column[number]) for name, column in more.items()},
            }
        )

    write_csv(path, (batch(start) for start in range(0, len(cluster), CHUNK_ROWS)))
