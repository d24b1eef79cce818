"""Rows that training never saw, because validation held all of their events back."""

from __future__ import annotations

import numpy as np

from recsys.data.kept_events import KeptEvents
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.embedding.placement import tables_of
from recsys.model import TowerInputs, TwoTower


def read_as_unknown(model: TwoTower, inputs: TowerInputs, events: KeptEvents) -> None:
    """Gives rows without a kept event the embedding of row 0, which stands in for them.

    The vocabulary counts what was held back too, so whoever uses the model reads them.

    Args:
        model: The trained model.
        inputs: What is known of users and items.
        events: The training positives, without what was held back.
    """
    kept = {
        "users": events.user_counts(inputs.users.n_rows),
        "items": events.item_counts(inputs.items.n_rows),
    }
    for table in tables_of(model):
        if table.name not in kept:
            continue
        places = table.place(np.flatnonzero(kept[table.name] == 0))
        weights = table.embeddings.value
        stand_in = weights[table.place(UNKNOWN_ROW)]
        table.embeddings.assign(weights.at[places].set(stand_in))
