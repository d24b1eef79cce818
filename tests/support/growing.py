"""Vocabularies grown in a temporary folder."""

import tempfile
from pathlib import Path

from recsys.data.ingest.growth import Growth
from recsys.data.vocabulary import Vocabulary


def grow(previous, counted, config, cut, keep=None, held_out=()):
    """Returns the vocabulary of counted ids, and the changes; see `Growth`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if previous is not None:
            previous.save(folder / "before.parquet")
        before = None if previous is None else folder / "before.parquet"
        growth = Growth(before, config, cut, folder / "work", len(counted))
        growth.count(counted)
        if keep is not None:
            growth.keep(keep)
        for table in held_out:
            growth.hold_out(table)
        growth.decide()
        diff = growth.write(folder / "after.parquet")
        return Vocabulary.load(folder / "after.parquet"), diff
