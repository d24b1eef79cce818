"""Takes users out of a finished bundle, without the model folder and without a training.

Their entries in the table of ids, their histories, and their rows in the tables are overwritten
in the variables of the SavedModel; shapes and graph stay. The answers for all others must stay
too: the parity checks compare them with those of the bundle before.
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
from recsys.bundles.parity_process import ParityProcess
from recsys.bundles.reference import Reference
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError

_PROBES = 64
_HISTORY = 64
_STRANGER = "?"
_OF_USER_ROWS = "_of_user_rows"
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
        table = [self._get(f"_users/_table/{name}") for name in ("_first", "_second", "_numbers")]
        self._table = table
        self._places = {
            id_: place
            for id_, place in zip(ids, places_of(ids, table[0], table[1]), strict=True)
            if place >= 0
        }
        self.numbers = {id_: int(table[2][place]) for id_, place in self._places.items()}

    def overwritten(self, rows: Sequence[int]) -> tuple[Rows, int]:
        """Returns what becomes of the variables' rows, and how many events are removed.

        Args:
            rows: Rows that the users have of their own.
        """
        changes: Rows = {}
        # A copy of the next entry takes the place of one: searches find the first of equals.
        is_left = np.ones(len(self._table[0]), bool)
        is_left[[*self._places.values()]] = False
        following = np.minimum.accumulate(
            np.where(is_left, np.arange(len(is_left)), len(is_left))[::-1]
        )[::-1]
        for name, values in zip(("_first", "_second", "_numbers"), self._table, strict=True):
            key = self.key(f"_users/_table/{name}")
            changes[key] = {p: values[following[p]] for p in self._places.values()}
        changes[self.key("_users/_rows")] = dict.fromkeys(self.numbers.values(), 0)
        offsets = self._get("_users/_offsets")
        events = [e for n in self.numbers.values() for e in range(offsets[n], offsets[n + 1])]
        changes[self.key("_users/_items")] = dict.fromkeys(events, 0)
        for name in self._children("_users/_facts"):
            changes[self.key(f"_users/_facts/{name}")] = dict.fromkeys(events, -1)
        if "_times" in self._children("_users"):
            times = self._get("_users/_times")
            newest = np.delete(times[:-1], events).max(initial=0)
            changes[self.key("_users/_times")] = {
                **dict.fromkeys(events, 0),
                len(times) - 1: newest,
            }
        for name in self._children(_OF_USER_ROWS):
            changes[self.key(f"{_OF_USER_ROWS}/{name}")] = dict.fromkeys(rows, 0)
        return changes, len(events)

    def popularity(self) -> np.ndarray:
        """Returns what each item scores for strangers `[item rows]` float32."""
        return np.asarray(self._get("_candidates/_popularity"))

    def knows_rows(self) -> bool:
        """Returns whether the bundle says which variables have a row for each user."""
        return bool(self._children(_OF_USER_ROWS))

    def key(self, path: str) -> str:
        """Returns the key in the checkpoint of the variable at a path of attributes."""
        return str(self._nodes[self._node(path)].attributes[0].checkpoint_key)

    def _get(self, path: str) -> Any:
        return self._reader.get_tensor(self.key(path))

    def _children(self, path: str) -> list[str]:
        """Returns the names of an attribute's own ones; none if it isn't there."""
        try:
            node = self._nodes[self._node(path)]
        except KeyError:
            return []
        return [child.local_name for child in node.children]

    def _node(self, path: str) -> int:
        node = 0
        for name in path.split("/"):
            node = {c.local_name: c.node_id for c in self._nodes[node].children}[name]
        return node


def take_out(
    bundle: Path,
    ids: Sequence[str],
    free_rows: Callable[[Path], np.ndarray],
    before: Path,
) -> dict[str, int]:
    """Takes users out of `bundle`, an unpublished copy of `before`, and checks it.

    Args:
        bundle: The copy; no file of it is written into, since it may be a hard link.
        ids: The users.
        free_rows: Frees their rows in the copy's folder of vocabularies and returns these.
        before: The bundle that it is a copy of.

    Returns:
        `users` that were taken out, and `events` of their histories.

    Raises:
        RecsysError: The bundle is damaged; was written by an earlier version (R932); or answers
            others than before (R528 … R533, R538).
    """
    manifest = verify(before)
    stored = StoredIds(before, ids)
    rows = [int(row) for row in free_rows(bundle / "vocabulary")]
    if rows and not stored.knows_rows():
        raise RecsysError(
            "R932",
            f"The bundle {str(before)!r} must say which of its variables are of users.",
            "An earlier version wrote it: publish a new one (recsys run) and remove this version,"
            " then run recsys forget again.",
            f"no {_OF_USER_ROWS}",
        )
    changes, n_events = stored.overwritten(rows)
    variables.overwrite(bundle, changes)
    with tempfile.TemporaryDirectory(prefix=".forget-", dir=bundle.parent) as scratch:
        folders = [Path(scratch) / name for name in ("before", "after", "reference")]
        for folder in folders:
            folder.mkdir()
        reference = _reference(before, manifest, bundle, stored.popularity(), folders[0])
        (bundle / warmup.FILE).unlink()
        warmup.write_warmup(bundle, str(manifest["name"]), reference)
        _check_unknown(variables.load_mapped(bundle, folders[1]), bundle, ids)
        reference.save(folders[2])
        (bundle / MANIFEST).unlink()
        with ParityProcess() as parity:
            checked = parity.check(bundle, folders[2])
    _seal(bundle, before, checked, len(stored.numbers))
    return {"users": len({*stored.numbers}), "events": n_events}


def _seal(bundle: Path, before: Path, checked: Mapping[str, Any], n: int) -> None:
    """Writes the manifest of a bundle that lost `n` users."""
    manifest = read_manifest(before)
    fields = {name: value for name, value in manifest.items() if name not in ("files", "format")}
    users = Vocabulary.load(bundle / "vocabulary" / "users.parquet")
    fields["counts"] = {**fields["counts"], "users": max(0, fields["counts"]["users"] - n)}
    if isinstance(fields.get("lineage"), dict) and fields["lineage"].get("vocabulary"):
        known = {**fields["lineage"]["vocabulary"], "users": users.fingerprint()}
        fields["lineage"] = {**fields["lineage"], "vocabulary": known}
    fields[INSTEAD_OF] = manifest_digest(before)
    write_manifest(bundle, {**fields, "max_difference": checked["max_difference"]})


def _reference(
    before: Path, manifest: Mapping[str, Any], after: Path, popularity: np.ndarray, scratch: Path
) -> Reference:
    """Returns what the bundle answered before to users who stay, and to a stranger."""
    ask = variables.load_mapped(before, scratch).signatures
    users = Vocabulary.load(after / "vocabulary" / "users.parquet").own_ids.drop_null()
    chosen = np.unique(np.linspace(0, len(users) - 1, min(_PROBES, len(users))).astype(int))
    ids = [*users.take(chosen).to_pylist(), _STRANGER]
    history = ask["stored_history"](user_id=tf.constant(ids))["item_ids"].numpy()
    texts = np.vectorize(bytes.decode, otypes=[object])(history[:, :_HISTORY])
    # An unknown item follows, so that a history that is empty isn't replaced by the stored one.
    texts = np.concatenate([texts, np.full((len(ids), 1), _STRANGER, object)], axis=1)
    specs = ask["prepare_query"].structured_input_signature[1]
    given = {"user_id": np.asarray(ids, object), "history": texts}
    given["exclude_seen"] = np.zeros(len(ids), bool)
    empty = np.full((len(ids), 1), "", object)
    answers = ask["prepare_query"](
        **{name: tf.constant(given.get(name, empty), spec.dtype) for name, spec in specs.items()}
    )
    export = manifest["config"]["export"]
    return Reference(
        user_id=given["user_id"],
        history=texts,
        query=answers["embedding"].numpy(),
        source=np.asarray([source.decode() for source in answers["source"].numpy()], object),
        popularity=popularity,
        kind=export["item_embeddings"],
        min_parity=export["min_parity"],
        vectors=export["vectors"],
    )


def _check_unknown(model: Any, bundle: Path, ids: Sequence[str]) -> None:
    """Raises an error if a bundle still knows one of the users."""
    answer = model.signatures["stored_history"](user_id=tf.constant(list(ids), tf.string))
    if answer["known"].numpy().any() or (answer["item_ids"].numpy() != b"").any():
        rule = f"The bundle {str(bundle)!r} must not know the users that were taken out."
        raise RecsysError("R933", rule, "Report this as a bug, with the command's output.")


def knows(bundle: Path, ids: Sequence[str]) -> bool:
    """Returns whether the SavedModel of a bundle knows one of the users, or its files name one."""
    read_manifest(bundle)
    users = Vocabulary.load(bundle / "vocabulary" / "users.parquet")
    in_vocabulary = np.isin(ids, users.own_ids.drop_null().to_pylist())
    return bool(in_vocabulary.any() or StoredIds(bundle, ids).numbers)
