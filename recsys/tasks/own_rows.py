"""The rows of a system that is measured on data with other vocabularies than its own.

The last blessed model has the vocabularies of its training. Users, items and tokens are translated
by what they stand for, as a client of the served model would give them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recsys.data.catalogue import of_history
from recsys.data.dataset import Data
from recsys.data.event_examples import example_values
from recsys.data.event_features import LearnedFeature
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.formats import moment


def check_split(name: str, its: Vocabulary, data: Data) -> None:
    """Checks that a system was not trained on held-out events.

    Args:
        name: Display name of the system.
        its: Vocabulary of its items.
        data: The data to measure it on.

    Raises:
        RecsysError: It may have been (R411).
    """
    if its.split != data.items.split or its.cut > data.store.cut:
        raise RecsysError(
            "R411",
            f"{name} must have been trained on data that were split as those that it is"
            " measured on are, up to the cut of these, else it may have seen the answers.",
            "Measure it on the data folder that it was trained on, or on a later one; a"
            " pipeline whose split changed or whose cut moved back goes on with --set"
            " bless.over_blessed=0.",
            f"trained on {its.split.text} up to {moment(its.cut)},"
            f" measured on {data.items.split.text} from {moment(data.store.cut)} on",
        )


def check_shared(name: str, its: Vocabulary, ours: Vocabulary, is_shared: np.ndarray) -> None:
    """Checks that a system knows an item of the data.

    Args:
        name: Display name of the system.
        its: Vocabulary of its items.
        ours: Vocabulary of the items of the data.
        is_shared: Item rows of the data that it knows `[item rows]` bool.

    Raises:
        RecsysError: It knows none (R403).
    """
    if not is_shared.any():
        ids, of_data = (items.own_ids.drop_null() for items in (its, ours))
        examples = [repr(a[0].as_py()) if len(a) else "none" for a in (ids, of_data)]
        raise RecsysError(
            "R403",
            f"{name} must share items with the data: of its {len(ids):,} items,"
            f" {examples[0]} among them, none is one of the {len(of_data):,} of the data, such"
            f" as {examples[1]}.",
            "Measure it on the data folder that it was trained on, or on a later one of the"
            " same catalogue; if only the ids are written in another way, correct the ids.",
        )


def own_rows(ours: Vocabulary, theirs: Vocabulary) -> np.ndarray | None:
    """Returns their row for each of our rows `[our rows]` int32; None if rows are the same.

    Rows without an id map to row 0.
    """
    if ours.fingerprint() == theirs.fingerprint():
        return None
    return theirs.rows(ours.ids_of_rows)


def own_tokens(
    ours: Sequence[LearnedFeature], its: Sequence[LearnedFeature]
) -> dict[str, np.ndarray]:
    """Returns a system's token row for each of the data `[rows]` int32, by input.

    Inputs without an entry have the same rows, or numbers.
    """
    of_system, own = {one.name: one for one in its}, {}
    for one in ours:
        other = of_system.get(one.name)
        is_of_events = one.feature.side == "event"
        if other is None or one.is_same(other) or not (one.rows and is_of_events):
            continue
        rows = np.zeros(one.rows, np.int32)
        if one.feature.value == other.feature.value and other.rows:
            values = example_values(one)
            rows[one.encode(values)[:, 0]] = other.encode(values)[:, 0]
            rows[0] = 0
        own[one.name] = own[of_history(one.name)] = rows
    return own
