"""Items averaged with the items that most often occur together with them."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.data.hold_out import KeptEvents
from recsys.data.neighbours import graph_neighbours
from recsys.models.config import ItemNeighboursConfig
from recsys.models.inputs import ModelInputs, ModelSpec
from recsys.models.terms import Lookup, Tensors, Term
from recsys.registry import register_term


@register_term("item_neighbours")
class ItemNeighbours(Term):
    """Averages items with their neighbours (LightGCN without user embeddings).

    LightGCN (He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for
    Recommendation", SIGIR 2020) has embeddings e⁰ of users and items, and layers

        e_u^(k+1) = Σ_{i of u} e_i^(k) / √(d_u d_i),    e_i^(k+1) = Σ_{u of i} e_u^(k) / √(d_u d_i)

    and the final vector is the mean over the layers. Without user embeddings (e_u⁰ = 0), a user's
    vector is a weighted sum of the items of the history (layer 1), and an item's vector is

        e_i = (e_i⁰ + Σ_j C_ij e_j⁰) / 2

    since e_i¹ = 0. C sums over the users (`recsys.data.neighbours.graph_neighbours`), so a step
    reads only item rows. Only the `n` largest entries of each row of C are kept, and normalised to
    sum 1. The neighbours are counted from the training events and replicated on all devices.
    """

    def __init__(self, options: ItemNeighboursConfig, spec: ModelSpec) -> None:
        super().__init__(options, spec, name="item_graph")

    @property
    def lookups(self) -> dict[str, Lookup]:
        """The lookup of the candidates' neighbours, in the item table."""
        return {"item_neighbours": ("items", (None, self.options.count))}

    def build(self, input_shape: Any = None) -> None:
        """Creates the neighbours `[rows, n]`, rows of the item table, and their weights."""
        shape = (self.spec.item_rows, self.options.count)
        options: dict[str, Any] = {"shape": shape, "trainable": False}
        self.neighbours = self.add_weight(
            name="neighbours", initializer="zeros", dtype="int32", **options
        )
        self.shares = self.add_weight(name="shares", initializer="zeros", **options)

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Counts the neighbours from the training events."""
        rows, weights = graph_neighbours(events, *self.neighbours.shape)
        self.neighbours.assign(rows)
        self.shares.assign(weights)

    @property
    def adapted(self) -> list[Any]:
        """All of its weights."""
        return list(self.weights)

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns the rows of the neighbours `[candidates, n]` int32, and their weights."""
        if "id_row" not in inputs:
            return {}
        rows, shares = (
            ops.take(x, inputs["id_row"], axis=0) for x in (self.neighbours, self.shares)
        )
        return {"item_neighbours": (rows, shares)}

    def item_row(self, row: keras.KerasTensor, read: Tensors) -> keras.KerasTensor:
        """Returns the means `[candidates, dim]` of the items' rows and their neighbours' means."""
        return (row + read["item_neighbours"]) / 2
