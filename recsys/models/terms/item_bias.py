"""A learned bias of each item."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.models.terms import Lookup, Tensors, Term, TermTable
from recsys.registry import register_term


@register_term("item_bias")
class ItemBias(Term):
    """Adds a learned bias of the item: the columns are 1 for a query and the bias for a candidate.

    The biases are a table of width 1. Items without training events read row 0, as for embeddings.
    """

    @property
    def tables(self) -> dict[str, TermTable]:
        """The table of the biases."""
        return {"item_bias": TermTable("items", 1)}

    @property
    def lookups(self) -> dict[str, Lookup]:
        """The lookup of the candidates' biases."""
        return {"item_bias": ("item_bias", (None,))}

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns the item rows of the candidates `[candidates]` int32, without weights."""
        return {"item_bias": (inputs["id_row"], None)} if "id_row" in inputs else {}

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns ones `[batch, 1]`."""
        return ops.ones_like(vectors[:, :1])

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the biases `[candidates, 1]`."""
        return read["item_bias"]
