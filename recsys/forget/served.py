"""Removes users from the versions of a serving folder, the served one first.

A version without them is published under the next number, as the Pusher does. Earlier versions and
versions that were rolled back keep their numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.bundles.bundle import manifest_digest, read_manifest
from recsys.bundles.publishing import (
    HIDDEN,
    VersionRegistry,
    only_publisher,
    publish,
    versions,
    withdrawn_folders,
)
from recsys.errors import RecsysError
from recsys.forget.bundles import INSTEAD_OF, knows, take_out
from recsys.forget.files import linked_copy, recover, replacing
from recsys.forget.model_folder import free_rows
from recsys.forget.names import Names
from recsys.system.files import retire


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
    free = functools.partial(free_rows, names=names)
    for served in versions(serving_root)[-1:]:
        with done.collecting(served):
            if knows(served, ids):
                with linked_copy(served) as copy:
                    take_out(copy, ids, free, served)
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
                take_out(copy, ids, free, folder)
            done.changed += 1
    return done


def _retire(serving_root: Path, old: Path, new: Path) -> None:
    """Removes a replaced version, so that a rollback returns to the one before it."""
    with only_publisher(serving_root):
        registry = VersionRegistry.open(serving_root)
        if registry.pinned == int(old.name):
            registry.save(serving_root, pinned=int(new.name))
        retire(old, serving_root / f"{HIDDEN}old-{old.name}")
