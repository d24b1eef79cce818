"""The base class of terms, the parts of a score that a model lists."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import keras

from recsys import registry
from recsys.data.kept_events import KeptEvents
from recsys.models.config import TermConfig
from recsys.models.inputs import ModelInputs, ModelSpec

Tensors = dict[str, keras.KerasTensor]
Lookup = tuple[str, tuple[int | None, ...]]
"""Name of the table that an input reads, and the shape of the input."""


@dataclasses.dataclass(frozen=True)
class TermTable:
    """A table of a term, with a row for each user or item.

    Attributes:
        rows_of: Whose rows it has.
        dim: Its width [floats].
        initializer: Initial values: a Keras initializer, or its name.
    """

    rows_of: Literal["users", "items"]
    dim: int
    initializer: Any = "zeros"


class Term(keras.layers.Layer):
    """A term of the score, which a model lists in `config.score_terms`.

    A subclass overrides what it needs and is registered; a config enables it by `model.terms`:

        @recsys.register_term("item_popularity")
        class ItemPopularity(recsys.Term):
            class Config(recsys.TermConfig):
                columns: ClassVar[int] = 1

            def build(self, input_shape=None):
                rows = self.spec.item_rows
                self.log = self.add_weight(name="log", shape=(rows,), trainable=False)
                self.scale = self.add_weight(name="scale", shape=(), initializer="zeros")

            def adapt(self, events, inputs):
                self.log.assign(np.log1p(inputs.items.row_counts))

            @property
            def adapted(self):
                return [self.log]

            def of_query(self, read, vectors):
                return ops.ones_like(vectors[:, :1])

            def of_candidate(self, read, vectors):
                return self.scale * ops.take(self.log, read["id_row"])[:, None]

    Its variables are saved, restored and exported with the model. `query` and `candidate` of the
    model don't see what it looks up. `of_query`, `of_candidate` and `item_row` get `read`: the
    inputs by name, and the embeddings of the term's own lookups.

    Args:
        options: The term's options.
        spec: Config and sizes of the model.
        name: Name of the layer; None: the name that the class is registered by.

    Attributes:
        Config: Type of its options.
    """

    Config: ClassVar[type[Any]] = TermConfig

    def __init__(self, options: Any, spec: ModelSpec, name: str | None = None) -> None:
        super().__init__(name=name or registry.name_of("term", options))
        self.options, self.spec = options, spec

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables; by default none."""

    # --- tables

    @property
    def tables(self) -> dict[str, TermTable]:
        """Tables of its own by name."""
        return {}

    @property
    def lookups(self) -> dict[str, Lookup]:
        """Table and shape of each lookup of its own, by name; of its tables or others."""
        return {}

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns rows to look up, and their weights or None, by name of the lookup.

        Args:
            inputs: Rows that the model looks up: of the user, the item, or both.
        """
        return {}

    def token_weights(self, feature: str, tokens: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns weights of the tokens of a feature's bags `[…, width]`; None: not its job."""
        return None

    # --- the score of a retrieval model

    def item_row(self, row: keras.KerasTensor, read: Tensors) -> keras.KerasTensor:
        """Returns the embeddings `[candidates, dim]` that `candidate` reads as `id_row`."""
        return row

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns `[batch, Config.columns]` float32 to append to query vectors `[batch, dim]`.

        The sum of their products with those of `of_candidate` is added to the similarity.
        """
        return None

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns `[candidates, Config.columns]` float32 to append to candidate vectors."""
        return None

    # --- counted weights

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Sets the weights that are counted from the training data, before training.

        Args:
            events: The events that training sees.
            inputs: Vocabularies and features.
        """

    @property
    def adapted(self) -> list[Any]:
        """The weights that `adapt` sets: no step changes them, and no warm start keeps them."""
        return []


def terms_of(spec: ModelSpec) -> dict[str, Term]:
    """Returns the terms of a model by name, without variables."""
    chosen = {registry.name_of("term", options): options for options in spec.config.score_terms}
    return {
        name: registry.class_of("term", options)(options, spec) for name, options in chosen.items()
    }
