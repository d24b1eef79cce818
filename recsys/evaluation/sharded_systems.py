"""Systems whose tables and candidates are split over the devices of several processes.

Each process calls the same functions in the same order. None holds a table of a model, or the
embeddings of a whole catalogue; embeddings of queries all of them have.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pyarrow as pa

from recsys.bundles.bundle import direction_width, facts_of, verify
from recsys.data.dataset import Data
from recsys.data.history_facts import Facts
from recsys.data.vocabulary import load_kinds
from recsys.distributed.host_collectives import agreed, is_primary, jointly, meet, of_first
from recsys.evaluation.bundle_process import BundleProcess
from recsys.evaluation.scores import SystemProgress
from recsys.evaluation.sharded_candidates import (
    EmbedRows,
    ShardedCandidates,
    embedded_blocks,
    split,
)
from recsys.evaluation.systems import (
    System,
    SystemEmbeddings,
    check_finite,
    check_numbers,
    is_bundle,
    read_bundle,
)
from recsys.models import load_model
from recsys.models.inference import Inference
from recsys.models.saved import Probe, check_differences, largest_of, read_probe

_SIGN_EVERY_S = 60.0
_SILENT_S = 6 * 3600.0
"""How long the first process may work alone without a sign, as on fitting a baseline [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedEmbeddings(SystemEmbeddings):
    """The embeddings of a model whose candidates are embedded where they are to lie.

    Attributes:
        embed: Embeds rows of the model's own.
        devices: The devices.
        name: What people call it.
        check: Compares embeddings of all its rows with those of its trainer; None: there are
            none to compare with.
    """

    embed: EmbedRows
    devices: jax.sharding.Mesh
    name: str
    check: ProbeCheck | None = None

    def candidates_of(
        self, own_row: np.ndarray | None, is_candidate: np.ndarray
    ) -> ShardedCandidates:
        """Returns the candidates in the rows of data; see `SystemEmbeddings.candidates_of`."""
        check, own = self.check, np.arange(self.items.n_rows)
        rows = own if own_row is None else own_row
        embed = self.embed
        if check is not None and own_row is None:
            embed = check.watched(embed)
        elif check is not None:
            for _ in embedded_blocks(check.watched(embed), own, self.devices):
                pass
        candidates = ShardedCandidates.embedded(embed, rows, self.devices)
        check_finite(self.name, np.isfinite(candidates.largest_of_rows))
        if check is not None:
            check.finish()
        return candidates.without(~is_candidate)


class RequestedRows:
    """Embeddings that the first process asks for while it works alone; the others `answer`.

    Args:
        candidates: The embeddings `[item rows, dim]`.
    """

    def __init__(self, candidates: ShardedCandidates) -> None:
        self._candidates, self.shape = candidates, candidates.shape
        self._asked_at = time.monotonic()

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Returns the embeddings `[…, dim]` float32 of item rows `[…]`."""
        agreed(lambda: {"rows": np.asarray(rows).ravel().tolist()})
        self._asked_at = time.monotonic()
        return self._candidates[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns all of them in memory, which few catalogues fit."""
        return np.asarray(self[np.arange(self.shape[0])], dtype)

    def signing(self, progress: SystemProgress) -> SystemProgress:
        """Returns `progress`, which also shows the others now and then that this one works."""

        def report(system: str, done: int, total: int) -> None:
            progress(system, done, total)
            if time.monotonic() - self._asked_at > _SIGN_EVERY_S:
                self[np.zeros(0, np.int32)]

        return report


def done_by_first(
    work: Callable[[RequestedRows], dict[str, Any]], candidates: ShardedCandidates
) -> dict[str, Any]:
    """Returns, in every process, what the first one computes alone: JSON.

    Args:
        work: Computes it; may ask for embeddings of items.
        candidates: The embeddings.
    """
    if is_primary():
        result = work(RequestedRows(candidates))
        agreed(lambda: {"result": result})
        return result
    while True:
        request = agreed(dict, _SILENT_S)
        if "rows" not in request:
            done: dict[str, Any] = request["result"]
            return done
        candidates[np.array(request["rows"], np.int32)]


class ProbeCheck:
    """Compares a model's embeddings with those that its trainer wrote, part by part.

    Args:
        folder: The model folder.
        probe: What the trainer's towers gave.
        query: Embeddings `[probes, dim]` of the probe's queries, as computed now.
    """

    def __init__(self, folder: Path, probe: Probe, query: np.ndarray) -> None:
        self._folder, self._trained = folder, probe.candidates
        self._of_queries = largest_of(probe.query, query)
        self._own = [0.0, 0.0]

    def watched(self, embed: EmbedRows) -> EmbedRows:
        """Returns `embed`, which also has each process compare the rows of its devices."""

        def watching(rows: np.ndarray) -> jax.Array:
            block = embed(rows)
            for shard in block.addressable_shards:
                index: Any = shard.index
                trained = self._trained[rows[index[0]]]
                now = largest_of(trained, np.asarray(shard.data))
                self._own = np.maximum(self._own, now).tolist()  # NaN stays.
            return block

        return watching

    def finish(self) -> None:
        """Checks that all embeddings are those of the trainer.

        Raises:
            RecsysError: They differ (R311).
        """
        largest, difference = np.max(jointly(lambda: self._own), axis=0).tolist()
        check_differences(self._folder, self._of_queries, (largest, difference))


def open_sharded(path: Path, data: Data, name: str, mesh: keras.distribution.DeviceMesh) -> System:
    """Opens a model folder or a bundle to be measured; see `systems.open_system`.

    Args:
        path: What a training, an export or a push wrote.
        data: The data folder to measure it on.
        name: What people call it.
        mesh: One axis of devices, over which tables and candidates are split; in every process
            the same.

    Raises:
        RecsysError: As that.
    """
    name = f"{name} ({path})"
    opener = _open_bundle if is_bundle(path) else _open_model
    return System(name, opener(path, name, mesh), data)


def _open_model(folder: Path, name: str, mesh: keras.distribution.DeviceMesh) -> ShardedEmbeddings:
    trained = load_model(folder, mesh=mesh)
    inputs, config = trained.inputs, trained.model.spec.config
    # Another system's layout may be the active one by the time that this one embeds.
    distribution: Any = keras.distribution.distribution()
    inference = Inference(trained.model)

    def queries(user_ids: pa.Array, history: np.ndarray, facts: Facts | None = None) -> np.ndarray:
        with distribution.scope():
            return inference.queries(inputs.users.rows(user_ids), history, inputs, facts)

    def embed(rows: np.ndarray) -> jax.Array:
        with distribution.scope():
            return inference.candidates_in_place(rows, inputs)

    probe = read_probe(folder)
    meet()  # Their disks may be unlike.
    query = inference.queries(probe.user_row, probe.history, inputs, probe.facts)
    check_numbers(name, query)
    return ShardedEmbeddings(
        items=inputs.items,
        candidates=probe.candidates,
        history=config.history,
        queries=queries,
        width=config.dim if config.vector_dim > config.dim else None,
        facts=config.query_facts,
        kinds=inputs.kinds,
        embed=embed,
        devices=mesh.backend_mesh,
        name=name,
        check=ProbeCheck(folder, probe, query),
    )


def _open_bundle(bundle: Path, name: str, mesh: keras.distribution.DeviceMesh) -> ShardedEmbeddings:
    manifest = agreed(lambda: verify(bundle))
    items, candidates, history = read_bundle(bundle, manifest)
    # TensorFlow holds what a server of the bundle does: on the first host alone.
    process = BundleProcess(bundle) if is_primary() else None

    def queries(user_ids: pa.Array, history: np.ndarray, facts: Facts | None = None) -> np.ndarray:
        return of_first(
            lambda: np.zeros(0) if process is None else process.queries(user_ids, history, facts)
        )

    def embed(rows: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            return np.asarray(candidates[rows[index[0]]], np.float32)

        shape = len(rows), candidates.shape[1]
        return jax.make_array_from_callback(shape, split(mesh.backend_mesh), part)

    return ShardedEmbeddings(
        items=items,
        candidates=candidates,
        history=history,
        queries=queries,
        width=direction_width(manifest),
        facts=facts_of(manifest),
        kinds=load_kinds(bundle / "vocabulary"),
        embed=embed,
        devices=mesh.backend_mesh,
        name=name,
    )
