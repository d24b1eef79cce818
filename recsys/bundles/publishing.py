"""Publishing a bundle as the next served version, and rolling back to an earlier one.

A bundle is copied next to the versions under a hidden name, checked, synced to the disk and then
renamed, so a reader sees either the old version or the new one. Everything that needs disk space
happens before the rename.

A rollback renames the newer versions to hidden names, so servers that serve the highest number,
such as TensorFlow Serving, find the earlier one. The rename is immediate, works on a full disk,
and can be undone by another rename.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pydantic

from recsys.bundles.bundle import manifest_digest, verify
from recsys.errors import RecsysError, UsageError
from recsys.strict import Strict
from recsys.system.files import (
    commit_file,
    commit_folder,
    free_there,
    only_writer,
    remove,
    retire,
    sync_file,
)

LEDGER = ".versions.json"
HIDDEN = ".publish-"
"""Prefix of unfinished folders of a publisher; after a kill they are removed."""
_WITHDRAWN = ".withdrawn-"
_MOST_WITHDRAWN = 1000


_HIGHEST_VERSION = 2**63 - 1
"""TensorFlow Serving's versions are int64."""


def versions(serving_root: Path) -> list[Path]:
    """Returns the folders of the published versions, the oldest first."""
    return list(_numbered(serving_root, "").values())


def withdrawn_folders(serving_root: Path) -> dict[int, Path]:
    """Returns the folders of the versions that were rolled back, by number, ascending."""
    return _numbered(serving_root, _WITHDRAWN)


def all_folders(serving_root: Path) -> dict[int, Path]:
    """Returns the folders of the versions in service, and of those that were rolled back."""
    return withdrawn_folders(serving_root) | _numbered(serving_root, "")


def listed(serving_root: Path) -> list[dict[str, Any]]:
    """Returns `version`, `state` and `since` (UTC) of each version, the newest first."""
    published = _numbered(serving_root, "")
    states = dict.fromkeys(published, "earlier") | dict.fromkeys([*published][-1:], "served")
    return [
        {
            "version": n,
            "state": states.get(n, "rolled back"),
            "since": f"{dt.datetime.fromtimestamp(path.stat().st_ctime, dt.UTC):%F %T} UTC",
        }
        for n, path in sorted(all_folders(serving_root).items(), reverse=True)
    ]


def _numbered(serving_root: Path, prefix: str) -> dict[int, Path]:
    paths = serving_root.iterdir() if serving_root.is_dir() else ()
    named = [path for path in paths if path.name.startswith(prefix)]
    numbered = [path for path in named if is_version(path.name.removeprefix(prefix))]
    folders = [path for path in numbered if path.is_dir()]
    return dict(sorted((int(path.name.removeprefix(prefix)), path) for path in folders))


def is_version(name: str) -> bool:
    """Returns whether a folder name is a version, also for TensorFlow Serving."""
    return name.isascii() and name.isdecimal() and int(name) <= _HIGHEST_VERSION


def latest(serving_root: Path) -> Path:
    """Returns the newest published version.

    Raises:
        RecsysError: Nothing was published.
    """
    published = versions(serving_root)
    if not published:
        rule = f"A bundle must have been pushed to {str(serving_root)!r}."
        cure = "Run the pipeline first: recsys run. Its report says why a model was not pushed."
        raise RecsysError("R510", rule, cure)
    return published[-1]


_Number = Annotated[int, pydantic.Field(ge=0, le=_HIGHEST_VERSION)]


class VersionRegistry(Strict):
    """The content of the registry file."""

    highest: _Number = 0
    """Highest number of any version so far; 0 without versions."""
    pinned: _Number | None = None
    """Version that the last rollback chose; it is kept."""
    withdrawn: dict[_Number, str] = pydantic.Field(default_factory=dict)
    """Digest of the manifest of each rolled-back version."""

    @classmethod
    def open(cls, serving_root: Path) -> VersionRegistry:
        """Reads the registry, and corrects it by the existing folders."""
        try:
            kept = cls.model_validate_json((serving_root / LEDGER).read_bytes())
        except (OSError, ValueError):
            kept = cls()
        there = {int(path.name) for path in versions(serving_root)}
        withdrawn = kept.withdrawn | {
            number: digest
            for number, path in withdrawn_folders(serving_root).items()
            if (digest := manifest_digest(path)) is not None
        }
        # TensorFlow Serving may read any entry whose name is a number, also links and files.
        taken = {int(path.name) for path in serving_root.iterdir() if is_version(path.name)}
        return cls(
            highest=max([kept.highest, *taken, *withdrawn]),
            pinned=kept.pinned if kept.pinned in there else None,
            withdrawn={n: withdrawn[n] for n in sorted(withdrawn.keys() - there)},
        )

    def save(self, serving_root: Path, **changes: Any) -> None:
        """Writes the registry atomically, with changed fields."""
        fields = self.model_dump() | changes
        fields["withdrawn"] = dict(list(fields["withdrawn"].items())[-_MOST_WITHDRAWN:])
        temporary = serving_root / f"{HIDDEN}versions.json"
        temporary.write_text(json.dumps(fields), encoding="utf-8")
        commit_file(temporary, serving_root / LEDGER)


class WithdrawnError(RecsysError):
    """The bundle to publish was rolled back before (R513)."""


def publish(bundle: Path, serving_root: Path, keep: int) -> Path:
    """Copies `bundle` to the next version of `serving_root`, atomically.

    Removes files that a killed call left. Publishes nothing if the newest version has the same
    content. A number is never reused.

    Args:
        bundle: A bundle with a manifest.
        serving_root: Folder of the versions; created if missing.
        keep: Number of newest versions to keep, including the new one; at least 1. The version that
            the last rollback chose is kept, too.

    Returns:
        The folder of the version with the content of `bundle`.

    Raises:
        WithdrawnError: The same content was rolled back (R513).
        RecsysError: The bundle is damaged, or the folder can't be written.
    """
    if keep < 1:
        raise RecsysError("R512", "At least one version must be kept.", "Set push.keep to 1.", keep)
    verify(bundle)
    with only_publisher(serving_root):
        registry = VersionRegistry.open(serving_root)
        path = _published_already(bundle, serving_root) or _add(bundle, serving_root, registry)
        _prune(serving_root, keep, registry.pinned)
    return path


def _published_already(bundle: Path, serving_root: Path) -> Path | None:
    published = versions(serving_root)
    if not published or manifest_digest(published[-1]) != manifest_digest(bundle):
        return None
    try:
        verify(published[-1])
    except RecsysError:  # Damaged since then: publish it again.
        return None
    return published[-1]


def _add(bundle: Path, serving_root: Path, registry: VersionRegistry) -> Path:
    digest = manifest_digest(bundle)
    for number, withdrawn in registry.withdrawn.items():
        if withdrawn == digest:
            rule = (
                f"What was rolled back is not published again: the bundle {str(bundle)!r} has"
                f" the content of version {number}."
            )
            cure = (
                "Train on new data or with another config; or bring that version back:"
                f" recsys rollback --to {number}."
            )
            raise WithdrawnError("R513", rule, cure)
    number = registry.highest + 1
    if not is_version(str(number)):
        raise OSError(f"no number is left above {registry.highest}")
    temporary, final = serving_root / f"{HIDDEN}{number}", serving_root / str(number)
    try:
        shutil.copytree(bundle, temporary)
        verify(temporary)  # It may have changed while it was copied.
        # Before the version is visible: if it were deleted by hand, its number must not be reused.
        registry.save(serving_root, highest=number)
        commit_folder(temporary, final)
    finally:
        with contextlib.suppress(OSError):
            remove(temporary)  # Frees the space on a full disk.
    return final


def _prune(serving_root: Path, keep: int, pinned: int | None) -> None:
    """Deletes old versions, and all but the newest `keep` rolled-back ones."""
    old = [path for path in versions(serving_root)[:-keep] if int(path.name) != pinned]
    rolled_back = list(withdrawn_folders(serving_root).values())[:-keep]
    if rolled_back:  # Their content must stay known.
        VersionRegistry.open(serving_root).save(serving_root)
    for path in [*old, *rolled_back]:
        retire(path, serving_root / f"{HIDDEN}old-{path.name.lstrip('.')}")


@contextlib.contextmanager
def only_publisher(serving_root: Path) -> Iterator[None]:
    """Waits for other publishers, and removes files that killed ones left.

    Raises:
        RecsysError: The folder can't be written (R511).
    """
    try:
        with only_writer(serving_root, HIDDEN):
            yield
    except OSError as error:
        rule = (
            f"The serving folder {str(serving_root)!r} must be a folder that can be written"
            f"{free_there(serving_root)}."
        )
        cure = (
            "Free disk space, or correct its permissions, and run again;"
            " the version that was served is untouched."
        )
        # `copytree` gathers the errors of all files: source, copy, and reason of each.
        received = error.args[0][0][2] if isinstance(error, shutil.Error) else str(error)
        raise RecsysError("R511", rule, cure, received) from None


@dataclasses.dataclass(frozen=True)
class Rollback:
    """The result of a rollback.

    Attributes:
        served: Folder of the version that is served now.
        withdrawn: Numbers of the versions that are no longer served, ascending; empty if `served`
            was served before.
    """

    served: Path
    withdrawn: list[int]


def rollback(serving_root: Path, to: int | None = None) -> Rollback:
    """Serves an earlier version again, and withdraws the newer ones.

    Withdrawn versions are kept under hidden names, and can be restored by their number.

    Args:
        serving_root: Folder of the versions.
        to: Number of the version to serve; None: the version before the newest.

    Raises:
        UsageError: There is no such version (R516).
        RecsysError: There is no earlier version (R515), it is damaged (R517), or the folder can't
            be written (R511).
    """
    if not all_folders(serving_root):
        raise _nothing_before(serving_root)
    with only_publisher(serving_root):
        number, target = _target(serving_root, to)
        newer = [path for path in versions(serving_root) if int(path.name) > number]
        served = serving_root / str(number)
        if newer or target != served:
            # It can't be written on a full disk; the folders determine the served version.
            with contextlib.suppress(OSError):
                registry = VersionRegistry.open(serving_root)
                withdrawn = {n: x for n, x in registry.withdrawn.items() if n != number}
                registry.save(serving_root, pinned=number, withdrawn=withdrawn)
        # Only the last rename changes which number is the highest.
        if target != served:
            _rename(target, served)
        for path in newer:
            hidden = serving_root / f"{_WITHDRAWN}{path.name}"
            remove(hidden)
            _rename(path, hidden)
        return Rollback(served, [int(path.name) for path in newer])


def _target(serving_root: Path, to: int | None) -> tuple[int, Path]:
    """Returns number and folder of the version to roll back to, after a check of its files."""
    published, there = versions(serving_root), all_folders(serving_root)
    if to is None and len(published) < 2:
        raise _nothing_before(serving_root)
    number = int(published[-2].name) if to is None else to
    if number not in there:
        rule = (
            f"The serving folder {str(serving_root)!r} must have the version, in service or"
            " rolled back."
        )
        numbers = ", ".join(map(str, sorted(there)))
        cure = f"Name one of {numbers}; recsys rollback --list shows them."
        raise UsageError("R516", rule, cure, to)
    try:
        verify(there[number])
    except RecsysError as error:
        target = str(there[number])
        rule = f"The version to roll back to must be complete; {target!r} is damaged: {error.rule}"
        cure = "Nothing was changed. Name another version: recsys rollback --list, --to VERSION."
        raise RecsysError("R517", rule, cure, f"{error.code}, {error.received}") from None
    return number, there[number]


def _rename(path: Path, to: Path) -> None:
    path.rename(to)
    sync_file(to.parent)


def _nothing_before(serving_root: Path) -> RecsysError:
    rule = f"A rollback needs two versions in {str(serving_root)!r}: a served and an earlier one."
    cure = (
        "Nothing was changed. Push another model: recsys run; push.keep in the config says"
        " how many versions stay."
    )
    received = [path.name for path in versions(serving_root)]
    return RecsysError("R515", rule, cure, received)
