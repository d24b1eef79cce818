"""Embeddings and scores of many rows, in blocks of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from recsys.data.shuffle import held_part
from recsys.distributed.coordination import ending_after
from recsys.models.inputs import Given, ModelInputs
from recsys.models.lookups import LookupModel
from recsys.models.retrieval_model import RetrievalModel

if TYPE_CHECKING:
    from recsys.models.ranking_model import RankingModel

_BLOCK, _UNIT = 1024, 128
"""Maximum number of rows that a device embeds at a time, and a divisor of that number."""
_BLOCK_ITEMS = 2**16
"""Number of items of lists that a device scores at a time."""
ModelT = TypeVar("ModelT", bound=LookupModel)


class _Blocks(Generic[ModelT]):
    """Runs functions of a model over blocks of one shape, with its current weights.

    Args:
        model: The model. All processes must make the same calls.

    Attributes:
        model: The model.
    """

    def __init__(self, model: ModelT) -> None:
        self.model = model

    def _variables(self) -> list[Any]:
        return [variable.value for variable in self.model.variables]

    def _blocks(
        self,
        run: Any,
        inputs: Callable[[np.ndarray], dict[str, Any]],
        n: int,
        most: int = _BLOCK,
        unit: int = _UNIT,
    ) -> Iterator[np.ndarray]:
        """Runs a function over blocks of one shape, so that it compiles once.

        Each device computes its part of a block. Its process makes the inputs of that part, and
        waits once per block.
        """
        variables = self._variables()
        sharding = _sharding(by_rows=True)
        n_parts = 1 if sharding is None else int(sharding.mesh.shape[sharding.spec[0]])
        unit *= n_parts
        length = -(-min(max(n, most), most * n_parts) // unit) * unit
        for start in range(0, n, length):
            size = min(length, n - start)
            if sharding is None:
                own = inputs(np.arange(start, start + size))
                block: dict[str, Any] = {name: _padded(x, length) for name, x in own.items()}
            else:
                block = _split(sharding, length, size, inputs, start)
            with ending_after():
                computed = np.asarray(run(variables, block))
            yield computed[:size]


class ScoreInference(_Blocks["RankingModel"]):
    """Computes the scores of rows with the current weights of a model; compiled once."""

    def __init__(self, model: RankingModel) -> None:
        super().__init__(model)

        def scores(inputs: dict[str, Any]) -> Any:
            joint = model.joint_scores(model(inputs))
            return keras.ops.stack([joint[name] for name in model.label_names], axis=1)

        self._scores = _compiled(model, scores, _sharding())

    def blocks(
        self, inputs: Callable[[np.ndarray], dict[str, Any]], n: int
    ) -> Iterator[np.ndarray]:
        """Yields log odds and amounts `[b, labels]` float32, see `RankingModel.joint_scores`.

        Args:
            inputs: Returns the model's inputs of rows `[b]`.
            n: Number of rows.
        """
        return self._blocks(self._scores, inputs, n)


class ListInference(_Blocks["RankingModel"]):
    """Scores lists of items, one for each query, which is looked up and encoded once."""

    def __init__(self, model: RankingModel) -> None:
        super().__init__(model)
        of_query = {x.name for x in model.inputs_of_sides if x.side == "user"}
        ops = keras.ops

        def scores(inputs: dict[str, Any]) -> Any:
            n_queries, n_items = inputs["id_row"].shape
            query = {name: x for name, x in inputs.items() if name in of_query}
            rows = {
                name: ops.reshape(x, (n_queries * n_items, *x.shape[2:]))
                for name, x in inputs.items()
                if name not in of_query
            }
            place = ops.repeat(ops.arange(n_queries), n_items)
            joint = model.joint_scores(model.score_pairs(query, rows, place))
            stacked = ops.stack([joint[name] for name in model.label_names], axis=1)
            return ops.reshape(stacked, (n_queries, n_items, -1))

        self._scores = _compiled(model, scores, _sharding())

    def blocks(
        self, inputs: Callable[[np.ndarray], dict[str, Any]], n: int, n_items: int
    ) -> Iterator[np.ndarray]:
        """Yields log odds and amounts `[b, n_items, labels]` float32; see `ScoreInference.blocks`.

        Args:
            inputs: Returns the model's inputs of lists `[b]`: those of the query `[b, …]`, those
                of items and rows `[b, n_items, …]`.
            n: Number of lists.
            n_items: Length of each list.
        """
        return self._blocks(self._scores, inputs, n, max(1, _BLOCK_ITEMS // n_items), unit=1)


class Inference(_Blocks[RetrievalModel]):
    """Computes embeddings with the current weights of a model; compiled once."""

    def __init__(self, model: RetrievalModel) -> None:
        super().__init__(model)
        self._query = _compiled(model, model.embed_query, _sharding())
        self._candidate = _compiled(model, model.embed_candidate, _sharding())
        self._in_place = _compiled(model, model.embed_candidate, _sharding(by_rows=True))

    def queries(
        self,
        user_row: np.ndarray,
        history: np.ndarray,
        inputs: ModelInputs,
        given: Given | None = None,
    ) -> np.ndarray:
        """Returns query embeddings `[n, dim]` float32.

        Args:
            user_row: User rows `[n]` int32.
            history: Item rows `[n, history]` int32, the newest first, padded with 0.
            inputs: Vocabularies and features of users and items.
            given: Context, attributes and times `[n, …]` by input; see `ModelInputs.query`.
        """

        def of_rows(rows: np.ndarray) -> dict[str, Any]:
            own = {name: x[rows] for name, x in (given or {}).items()}
            return inputs.query(user_row[rows], history[rows], self.model.spec.config, own)

        return self._whole(self._blocks(self._query, of_rows, len(user_row)), len(user_row))

    def catalogue(self, inputs: ModelInputs) -> np.ndarray:
        """Returns candidate embeddings `[item rows, dim]` float32, row 0 included."""
        return self._whole(self.catalogue_blocks(inputs), inputs.catalogue.n_rows)

    def catalogue_blocks(self, inputs: ModelInputs) -> Iterator[np.ndarray]:
        """Yields the candidate embeddings `[b, dim]` float32 of all item rows, in their order."""
        return self._blocks(self._candidate, inputs.candidate, inputs.catalogue.n_rows)

    def candidates_in_place(self, item_rows: np.ndarray, inputs: ModelInputs) -> jax.Array:
        """Returns candidate embeddings `[n, dim]` float32, split by rows over the devices.

        Args:
            item_rows: Item rows `[n]`; n must divide among the devices. Each n compiles a program.
            inputs: Vocabularies and features of the items.
        """
        sharding, n = _sharding(by_rows=True), len(item_rows)
        if sharding is None:
            block: dict[str, Any] = inputs.candidate(item_rows)
        else:
            block = _split(sharding, n, n, lambda rows: inputs.candidate(item_rows[rows]))
        with ending_after():
            embedded: jax.Array = self._in_place(self._variables(), block)
        return embedded

    def _whole(self, blocks: Iterable[np.ndarray], n: int) -> np.ndarray:
        out, start = np.empty((0, self.model.spec.config.vector_dim), np.float32), 0
        for block in blocks:
            out = np.empty((n, block.shape[1]), np.float32) if not start else out
            out[start : start + len(block)] = block
            start += len(block)
        return out


def embed_queries(
    model: RetrievalModel,
    user_row: np.ndarray,
    history: np.ndarray,
    inputs: ModelInputs,
    given: Given | None = None,
) -> np.ndarray:
    """Returns query embeddings `[n, dim]` float32; see `Inference.queries`."""
    return Inference(model).queries(user_row, history, inputs, given)


def embed_catalogue(model: RetrievalModel, inputs: ModelInputs) -> np.ndarray:
    """Returns candidate embeddings `[item rows, dim]` float32, row 0 included."""
    return Inference(model).catalogue(inputs)


def _padded(x: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([x, np.zeros((n - len(x), *x.shape[1:]), x.dtype)])


def _split(
    sharding: NamedSharding,
    length: int,
    size: int,
    inputs: Callable[[np.ndarray], dict[str, Any]],
    start: int = 0,
) -> dict[str, jax.Array]:
    """Returns the inputs of a block on the devices; each process makes the inputs of its own rows.

    Args:
        sharding: Sharding of the block's rows.
        length: Number of rows of the block, including padding.
        size: Number of rows without padding.
        inputs: Returns the inputs of given rows.
        start: Index of the first row of the block.
    """
    own = held_part(sharding, int(sharding.mesh.shape[sharding.spec[0]])).rows(length)
    return {
        name: jax.make_array_from_process_local_data(
            sharding, _padded(x, len(own)), (length, *x.shape[1:])
        )
        for name, x in inputs(start + own[own < size]).items()
    }


def _compiled(
    model: LookupModel, compute: Callable[[dict[str, Any]], Any], out: NamedSharding | None
) -> Any:
    def run(variables: list[Any], block: dict[str, Any]) -> Any:
        scope = keras.StatelessScope(list(zip(model.variables, variables, strict=True)))
        # A GPU would multiply in TF32 by default, and its embeddings would differ from other
        # machines'.
        with scope, jax.default_matmul_precision("float32"):
            return compute(block)

    return jax.jit(run, out_shardings=out)


def _sharding(by_rows: bool = False) -> NamedSharding | None:
    """Returns a sharding by rows, or replicated; None without a distribution."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    spec = PartitionSpec(distribution.batch_dim_name) if by_rows else PartitionSpec()
    return NamedSharding(distribution.device_mesh.backend_mesh, spec)
