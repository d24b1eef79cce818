"""Takes users out of a finished bundle, without the model folder and without a training.

Their entries in the table of ids, their histories, and their rows in the tables are overwritten
in the variables of the SavedModel; shapes and graph stay. The answers to all others must stay
too: those of some are compared with those of the bundle before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from recsys.bundles import variables, warmup
from recsys.bundles.bundle import MANIFEST, manifest_digest, read_manifest, verify, write_manifest
from recsys.bundles.id_table import places_of
from recsys.bundles.parity import difference
from recsys.bundles.signatures import QUERY_TIME
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError

_PROBES = 64
_STRANGER = "?"
_NOW = "2020-01-01"
"""Time of the questions: by default they are of the newest event, which may be removed."""
_COMPARED = {"prepare_query": "embedding", "recommend": "scores"}
INSTEAD_OF = "instead_of"
"""Field of a manifest: the digest of the bundle that this one was made from."""

Rows = dict[str, dict[int, Any]]
"""New values of rows, by the key of a variable and the row."""


class StoredIds:
    """Users whom the SavedModel of a bundle knows.

    Args:
        bundle: The bundle.
        ids: Users to look up.

    Attributes:
        numbers: The number of each of `ids` that it knows.
    """

    def __init__(self, bundle: Path, ids: Sequence[str]) -> None:
        self._reader = tf.train.load_checkpoint(str(bundle / "variables" / "variables"))
        graph = self._reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
        self._nodes = TrackableObjectGraph.FromString(graph).nodes
        first, second, numbers = self._table = [
            self._get(f"_users/_table/{name}") for name in ("_first", "_second", "_numbers")
        ]
        places = places_of(ids, first, second).tolist()
        self._places = {id_: p for id_, p in zip(ids, places, strict=True) if p >= 0}
        self.numbers = {id_: int(numbers[place]) for id_, place in self._places.items()}

    def overwritten(self, rows: Sequence[int]) -> Rows:
        """Returns what becomes of the variables' rows.

        Args:
            rows: Rows that the users have of their own.
        """
        changes: Rows = {}
        # A copy of the next entry takes the place of one: searches find the first of equals.
        left = np.setdiff1d(np.arange(len(self._table[0])), [*self._places.values()])
        following = {place: left[np.searchsorted(left, place)] for place in self._places.values()}
        for name, values in zip(("_first", "_second", "_numbers"), self._table, strict=True):
            key = self.key(f"_users/_table/{name}")
            changes[key] = {place: values[other] for place, other in following.items()}
        changes[self.key("_users/_rows")] = dict.fromkeys(self.numbers.values(), 0)
        offsets = self._get("_users/_offsets")
        events = [e for n in self.numbers.values() for e in range(offsets[n], offsets[n + 1])]
        changes[self.key("_users/_items")] = dict.fromkeys(events, 0)
        for name in self._children("_users/_facts"):
            changes[self.key(f"_users/_facts/{name}")] = dict.fromkeys(events, -1)
        if "_times" in self._children("_users"):
            times = self._get("_users/_times")
            newest = np.delete(times[:-1], events).max(initial=0)
            last = {len(times) - 1: newest}
            changes[self.key("_users/_times")] = dict.fromkeys(events, 0) | last
        for name in self._children("_of_user_rows"):
            changes[self.key(f"_of_user_rows/{name}")] = dict.fromkeys(rows, 0)
        return changes

    def key(self, path: str) -> str:
        """Returns the key in the checkpoint of the variable at a path of attributes."""
        return str(self._node(path).attributes[0].checkpoint_key)

    def _get(self, path: str) -> Any:
        return self._reader.get_tensor(self.key(path))

    def _children(self, path: str) -> list[str]:
        return [child.local_name for child in self._node(path).children]

    def _node(self, path: str) -> Any:
        node = self._nodes[0]
        for name in path.split("/"):
            node = self._nodes[{c.local_name: c.node_id for c in node.children}[name]]
        return node


def take_out(
    bundle: Path, ids: Sequence[str], free_rows: Callable[[Path], np.ndarray], before: Path
) -> None:
    """Takes users out of `bundle`, an unpublished copy of `before`, and checks it.

    Args:
        bundle: The copy; no file of it is written into, since it may be a hard link.
        ids: The users.
        free_rows: Frees their rows in the copy's folder of vocabularies and returns these.
        before: The bundle that it is a copy of.

    Raises:
        RecsysError: The bundle is damaged; answers others differently than before (R530); or
            still knows one of the users (R933).
    """
    manifest, stored = verify(before), StoredIds(before, ids)
    rows = [int(row) for row in free_rows(bundle / "vocabulary")]
    variables.overwrite(bundle, stored.overwritten(rows))
    users = Vocabulary.load(bundle / "vocabulary" / "users.parquet")
    own = users.own_ids.drop_null()
    chosen = np.unique(np.linspace(0, len(own) - 1, min(_PROBES, len(own))).astype(int))
    others = [*own.take(chosen).to_pylist(), _STRANGER]
    n, asked = len(others), [*others, *ids]
    then, now = _answers(before, asked), _answers(bundle, asked)
    for name in _COMPARED.values():
        if name in then:
            difference("R530", name, now[name][:n], then[name][:n])
    if now["known"][n:].any():
        rule = f"The bundle {str(bundle)!r} must not know the users that were taken out."
        raise RecsysError("R933", rule, "Report this as a bug, with the command's output.")
    (bundle / warmup.FILE).unlink()
    probes = {"user_id": np.array(others, object), "history": np.full((n, 1), "", object)}
    warmup.write_warmup(bundle, str(manifest["name"]), probes)
    (bundle / MANIFEST).unlink()
    fields = {name: value for name, value in manifest.items() if name not in ("files", "format")}
    n_users = max(0, manifest["counts"]["users"] - len(stored.numbers))
    fields["counts"] = {**manifest["counts"], "users": n_users}
    write_manifest(bundle, {**_of_users(fields, users), INSTEAD_OF: manifest_digest(before)})


def _answers(bundle: Path, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns what a bundle answers to users of whom the question says nothing else."""
    answers: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory(prefix=".forget-", dir=bundle.parent) as scratch:
        signatures = variables.load_mapped(bundle, Path(scratch)).signatures
        texts = {"user_id": list(ids), QUERY_TIME: [[_NOW]] * len(ids)}
        for name in filter(signatures.__contains__, _COMPARED):
            inputs = {
                input_: tf.fill([len(ids)], value=False)
                if spec.dtype == tf.bool
                else tf.constant(texts.get(input_, [[""]] * len(ids)))
                for input_, spec in signatures[name].structured_input_signature[1].items()
            }
            outputs = signatures[name](**inputs).items()
            answers |= {output: value.numpy() for output, value in outputs}
    return answers


def _of_users(fields: Mapping[str, Any], users: Vocabulary) -> dict[str, Any]:
    """Returns the fields of a manifest with the fingerprint of other users."""
    lineage = fields.get("lineage") or {}
    if not lineage.get("vocabulary"):
        return dict(fields)
    known = {**lineage["vocabulary"], "users": users.fingerprint()}
    return {**fields, "lineage": {**lineage, "vocabulary": known}}


def knows(bundle: Path, ids: Sequence[str]) -> bool:
    """Returns whether the SavedModel of a bundle knows one of the users, or its files name one."""
    read_manifest(bundle)
    users = Vocabulary.load(bundle / "vocabulary" / "users.parquet")
    in_vocabulary = np.isin(ids, users.own_ids.drop_null().to_pylist())
    return bool(in_vocabulary.any() or StoredIds(bundle, ids).numbers)
