"""A learned bias for each item."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.models.terms.term import Lookup, Tensors, Term, TermTable
from recsys.registry import register_term


@register_term("item_bias")
class ItemBias(Term):
    """Adds a number of the item: 1 for a query, the bias for a candidate.

    It has a table, of width 1. Items without training events read row 0, as for their embedding.
    """

    @property
    def tables(self) -> dict[str, TermTable]:
        """The biases."""
        return {"item_bias": TermTable("items", 1)}

    @property
    def lookups(self) -> dict[str, Lookup]:
        """The bias of each candidate."""
        return {"item_bias": ("item_bias", (None,))}

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns the rows of the candidates."""
        return {"item_bias": (inputs["id_row"], None)} if "id_row" in inputs else {}

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns 1 for each query."""
        return ops.ones_like(vectors[:, :1])

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the biases `[candidates, 1]`."""
        return read["item_bias"]
