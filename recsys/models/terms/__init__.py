"""Terms, the parts of a score that a model lists: `Term` is the base class.

Each built-in term is a file of this folder.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import keras
import numpy as np

from recsys import registry
from recsys.data.hold_out import KeptEvents
from recsys.data.transitions import TransitionScores
from recsys.models.config import TermConfig
from recsys.models.inputs import ModelInputs, ModelSpec

Tensors = dict[str, keras.KerasTensor]
Lookup = tuple[str, tuple[int | None, ...]]
"""Name of the table that a lookup reads, and the shape of its input."""


@dataclasses.dataclass(frozen=True)
class TermTable:
    """A table of a term, with a row for each user or item.

    Attributes:
        rows_of: `users` or `items`, what the rows are.
        dim: Width [floats].
        initializer: Initial values: a Keras initializer, or its name.
    """

    rows_of: Literal["users", "items"]
    dim: int
    initializer: Any = "zeros"


class Term(keras.layers.Layer):
    """A term of the score, which a model lists in `config.score_terms`.

    Register a subclass that overrides the methods it needs; a config enables it by `model.terms`:

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

    Its variables are saved, restored and exported with the model. The model's `query` and
    `candidate` don't get its lookups. `of_query`, `of_candidate` and `item_row` get `read`: the
    inputs by name, and the embeddings of the term's own lookups.

    Args:
        options: Config of the term.
        spec: Config and sizes of the model.
        name: Name of the layer; None: the registered name of the class.

    Attributes:
        Config: Type of the config.
        in_training: Whether training sees what the term appends to the vectors.
    """

    Config: ClassVar[type[Any]] = TermConfig
    in_training: ClassVar[bool] = True

    def __init__(self, options: Any, spec: ModelSpec, name: str | None = None) -> None:
        super().__init__(name=name or registry.name_of("term", options))
        self.options, self.spec = options, spec

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables; by default none."""

    # --- tables

    @property
    def tables(self) -> dict[str, TermTable]:
        """The term's own tables by name; by default none."""
        return {}

    @property
    def lookups(self) -> dict[str, Lookup]:
        """Table and input shape of each lookup by name; by default none."""
        return {}

    def ids(self, inputs: Tensors) -> dict[str, tuple[keras.KerasTensor, Any]]:
        """Returns the rows int32 to look up, and their weights or None, by name of the lookup.

        Args:
            inputs: Inputs that the model looks up, by name: of the user, the item, or both.
        """
        return {}

    def token_weights(self, feature: str, tokens: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns weights of the tokens of a feature's bags `[…, width]`; None: no weights."""
        return None

    # --- the score of a retrieval model

    def item_row(self, row: keras.KerasTensor, read: Tensors) -> keras.KerasTensor:
        """Returns the embeddings `[candidates, dim]` that `candidate` reads as `id_row`."""
        return row

    def of_query(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns `[batch, Config.columns]` float32 to append to query vectors `[batch, dim]`.

        Their dot product with the columns of `of_candidate` is added to the similarity.
        """
        return None

    def of_candidate(self, read: Tensors, vectors: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns `[candidates, Config.columns]` float32 to append to candidate vectors."""
        return None

    def of_pairs(self) -> TransitionScores | None:
        """Returns what is added to the score for pairs of a history item and a candidate, if any.

        Training doesn't see it.
        """
        return None

    # --- counted weights

    def adapt(self, events: KeptEvents, inputs: ModelInputs) -> None:
        """Sets the weights that are counted from the training data; called before training.

        Args:
            events: The training events.
            inputs: Vocabularies and features.
        """

    @property
    def adapted(self) -> list[Any]:
        """Weights that `adapt` sets; neither training nor a warm start changes them."""
        return []


def terms_of(spec: ModelSpec) -> dict[str, Term]:
    """Returns the unbuilt terms of a model by name."""
    chosen = {registry.name_of("term", options): options for options in spec.config.score_terms}
    return {
        name: registry.class_of("term", options)(options, spec) for name, options in chosen.items()
    }


def assign_scalar(variable: Any, number: float) -> None:
    """Sets a scalar of a model that trains on JAX, in all processes.

    Given a number, Keras leaves an array of which Orbax can't read the parts of several processes.
    """
    import jax

    value = np.asarray(number, np.float32)
    variable.assign(jax.make_array_from_callback((), variable.value.sharding, lambda _: value))
