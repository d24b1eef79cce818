"""Removes users from the versions of a serving folder, the served one first.

A version without them is published under the next number, as the Pusher does. Earlier versions and
versions that were rolled back keep their numbers.

Users are removed without the model folder or a training. Their entries in the id table, their
histories and their table rows are overwritten in the variables of the SavedModel; shapes and graph
are unchanged. The answers to other users must not change: a sample of them is compared with the
original bundle's.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.bundles.bundle import (
    MANIFEST,
    answers_of,
    manifest_digest,
    read_manifest,
    verify,
    write_manifest,
)
from recsys.bundles.publishing import (
    HIDDEN,
    VersionRegistry,
    only_publisher,
    publish,
    versions,
    withdrawn_folders,
)
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.forget.files import Names, linked_copy, recover, replacing
from recsys.forget.model_folder import free_rows
from recsys.savedmodel import variables
from recsys.savedmodel.event_columns import EventColumns
from recsys.savedmodel.parity import difference
from recsys.savedmodel.signatures import (
    LIST_PADDING,
    RANK,
    WARMUP_FILE,
    input_names,
    write_warmup,
)
from recsys.system.files import retire
from recsys.tasks.serving.requests import warm_up_requests
from recsys.tasks.serving.stored_users import StoredIds

_PROBES = 64
_STRANGER = "?"
_NOW = "2020-01-01"
"""Query time of the comparison: the default is the newest event, which may be removed."""
_COMPARED = ("prepare_query", "recommend", RANK)
"""Signatures whose numbers must be the same as before."""
INSTEAD_OF = "instead_of"
"""Field of a manifest with the digest of the bundle that this one was made from."""


def take_out(bundle: Path, names: Names, before: Path) -> None:
    """Removes users from `bundle`, an unpublished copy of `before`, and checks it.

    Args:
        bundle: The copy. Its files are replaced, never modified, since they may be hard links.
        names: The users.
        before: The original bundle.

    Raises:
        RecsysError: The bundle is damaged, its answers to other users have changed (R530), or it
            still knows a removed user (R933).
    """
    ids = sorted(names.ids)
    manifest, stored = verify(before), StoredIds.of_parts(before, ids)
    rows = [int(row) for row in free_rows(bundle / "vocabulary", names)]
    changes = [part.overwritten(rows) for part in stored]
    variables.overwrite(bundle, {key: x for one in changes for key, x in one.items()})
    users = Vocabulary.load(bundle / "vocabulary" / "users.parquet")
    own = users.own_ids.drop_null()
    chosen = np.unique(np.linspace(0, len(own) - 1, min(_PROBES, len(own))).astype(int))
    others = [*own.take(chosen).to_pylist(), _STRANGER]
    n, asked = len(others), [*others, *ids]
    times = [
        c.input for c in EventColumns.of_manifest(manifest).context.values() if c.type == "time"
    ]
    then, now = _answers(before, asked, times), _answers(bundle, asked, times)
    for name, values in then.items():
        if values.dtype.kind == "f":
            difference("R530", name, now[name][:n], values[:n])
    if now["known"][n:].any():
        rule = f"The bundle {str(bundle)!r} must not know the users that were taken out."
        raise RecsysError("R933", rule, "Report this as a bug, with the command's output.")
    (bundle / WARMUP_FILE).unlink()
    probes = {"user_id": np.array(others, object), "history": np.full((n, 1), "", object)}
    requests = warm_up_requests(input_names(bundle), probes)
    write_warmup(bundle, str(manifest["name"]), requests)
    (bundle / MANIFEST).unlink()
    fields = {name: value for name, value in manifest.items() if name not in ("files", "format")}
    n_users = max(0, manifest["counts"]["users"] - len(stored[0].numbers))
    fields["counts"] = {**manifest["counts"], "users": n_users}
    write_manifest(bundle, {**_of_users(fields, users), INSTEAD_OF: manifest_digest(before)})


def _answers(bundle: Path, ids: Sequence[str], times: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the answers of a bundle to user ids, with the time `_NOW` in the inputs `times`."""
    answers: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory(prefix=".forget-", dir=bundle.parent) as scratch:
        signatures = variables.load_mapped(bundle, Path(scratch)).signatures
        texts = {"user_id": list(ids), **dict.fromkeys(times, [[_NOW]] * len(ids))}
        for name in filter(signatures.__contains__, _COMPARED):
            inputs = {
                input_: tf.fill([len(ids)], value=False)
                if spec.dtype == tf.bool
                else tf.fill([len(ids), 1], LIST_PADDING[input_])
                if input_ in LIST_PADDING
                else tf.constant(texts.get(input_, [[""]] * len(ids)))
                for input_, spec in signatures[name].structured_input_signature[1].items()
            }
            outputs = signatures[name](**inputs).items()
            answers |= {output: value.numpy() for output, value in outputs}
    return answers


def _of_users(fields: Mapping[str, Any], users: Vocabulary) -> dict[str, Any]:
    """Returns the fields of a manifest with the fingerprint of a changed vocabulary of users."""
    lineage = fields.get("lineage") or {}
    if not lineage.get("vocabulary"):
        return dict(fields)
    known = {**lineage["vocabulary"], "users": users.fingerprint()}
    return {**fields, "lineage": {**lineage, "vocabulary": known}}


def knows(bundle: Path, ids: Sequence[str]) -> bool:
    """Returns whether the SavedModel or another file of a bundle contains any of the users.

    Raises:
        RecsysError: The bundle is damaged (R501), or is of a task from a plugin (R545).
    """
    answers = answers_of(read_manifest(bundle))
    stored = StoredIds.of_parts(bundle, ids)
    if not stored:
        rule = f"Users can be taken out of bundles of built-in tasks; {str(bundle)!r} is none."
        cure = "Delete it, and train and push a model without the users: recsys run."
        raise RecsysError("R545", rule, cure, answers)
    users = Vocabulary.load(bundle / "vocabulary" / "users.parquet")
    in_vocabulary = np.isin(ids, users.own_ids.drop_null().to_pylist())
    return bool(in_vocabulary.any() or any(part.numbers for part in stored))


@dataclasses.dataclass
class Versions:
    """Changes in a serving folder.

    Attributes:
        published: The new version; None if the served one has none of the users.
        changed: Number of changed versions, including the new one.
        failed: Versions that could not be changed, with the reasons.
    """

    published: Path | None = None
    changed: int = 0
    failed: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @contextmanager
    def collecting(self, version: Path) -> Iterator[None]:
        """Adds an error to `failed`, so that the other versions are still changed."""
        try:
            yield
        except RecsysError as error:
            self.failed.append((str(version), str(error)))


def forget_in_versions(
    serving_root: Path, names: Names, keep: int, replaced: Callable[[Path, Path], None]
) -> Versions:
    """Removes users from all versions of a serving folder.

    Args:
        serving_root: Folder of the versions.
        names: The users.
        keep: Number of newest versions to keep (`push.keep`).
        replaced: Called with a version that is about to be removed, and the one that replaces it.
    """
    done, ids = Versions(), sorted(names.ids)
    if not serving_root.is_dir():
        return done
    recover(serving_root)
    for served in versions(serving_root)[-1:]:
        with done.collecting(served):
            if knows(served, ids):
                with linked_copy(served) as copy:
                    take_out(copy, names, served)
                    done.published = publish(copy, serving_root, keep + 1)
                done.changed += 1
    *earlier, served = versions(serving_root) or [serving_root]
    for folder in [*earlier, *withdrawn_folders(serving_root).values()]:
        with done.collecting(folder):
            if not knows(folder, ids):
                continue
            was_served = manifest_digest(folder) == read_manifest(served).get(INSTEAD_OF)
            if was_served and folder in earlier[-1:]:
                replaced(folder, served)
                _retire(serving_root, folder, served)
                continue
            with replacing(folder) as copy:
                take_out(copy, names, folder)
            done.changed += 1
    return done


def _retire(serving_root: Path, old: Path, new: Path) -> None:
    """Removes a replaced version, so that a rollback returns to the one before it."""
    with only_publisher(serving_root):
        registry = VersionRegistry.open(serving_root)
        if registry.pinned == int(old.name):
            registry.save(serving_root, pinned=int(new.name))
        retire(old, serving_root / f"{HIDDEN}old-{old.name}")
