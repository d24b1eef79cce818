"""How the candidates of a batch are shared among its queries, and among the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Self

if TYPE_CHECKING:
    import keras

    from recsys.config.training import TrainConfig


class CandidateSharing(NamedTuple):
    """Which candidates a query is compared with, and how devices send them to each other.

    In several groups the queries are cut into as many equal parts, and so are the candidates:
    those of a part are the positives of its queries, in their order, then further negatives.
    A query is compared with the candidates of its own part alone.

    Attributes:
        groups: Groups of queries, each with candidates of its own; 1: all share all.
        dtype: Type in which devices send candidates and their gradients to each other.
    """

    groups: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"

    @classmethod
    def of_config(cls, train: TrainConfig) -> Self:
        """Returns what `train.negative_groups` and `train.negatives_dtype` say."""
        return cls(train.negative_groups, train.negatives_dtype)


SHARED_BY_ALL = CandidateSharing()
"""Every query is compared with every candidate."""


def positives_of(
    candidate: keras.KerasTensor, n_queries: int, groups: int = 1
) -> keras.KerasTensor:
    """Returns the positives of all queries `[n_queries, …]`, in their order.

    Args:
        candidate: An entry for each candidate `[candidates, …]`.
        n_queries: Queries.
        groups: Groups of queries, each with candidates of its own.
    """
    from keras import ops

    if groups == 1:
        return candidate[:n_queries]
    shape = tuple(candidate.shape)
    of_groups = ops.reshape(candidate, (groups, shape[0] // groups, *shape[1:]))
    return ops.reshape(of_groups[:, : n_queries // groups], (n_queries, *shape[1:]))
