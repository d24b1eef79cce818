"""How the served version stops being it, and an earlier one is served again.

The newer versions are renamed to hidden names: what serves the highest number, as
TensorFlow Serving does, then finds the earlier one. Publishing the earlier one again
under a higher number would do too, but takes the space and the time of a copy, and
leaves the bad version the next one to go back to. A rename works at once and on a full
disk, and the same rename undoes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from recsys.bundle import verify, versions
from recsys.errors import RecsysError, UsageError
from recsys.held_folder import HeldFolder
from recsys.ledger import Ledger, hidden_folder, withdrawn_folders
from recsys.publish import only_publisher


@dataclasses.dataclass(frozen=True)
class Rollback:
    """What a rollback did.

    Attributes:
        served: Folder of the version that is served now.
        withdrawn: Numbers that are no longer served, ascending; none if `served` was
            the served one before.
    """

    served: Path
    withdrawn: list[int]


def rollback(serving_root: Path, to: int | None = None) -> Rollback:
    """Makes an earlier version the served one again; the newer ones go out of service.

    They stay under hidden names, so that they can be brought back by their number.

    Args:
        serving_root: Folder of the versions.
        to: Number of the version to serve; the one before the newest by default.

    Raises:
        UsageError: There is no such version (R516).
        RecsysError: There is nothing to roll back to (R515), it is damaged (R517), or
            the folder can't be written (R511).
    """
    if not versions(serving_root) and not withdrawn_folders(serving_root):
        raise _nothing_before(serving_root)
    with only_publisher(serving_root) as held:
        target = _target(serving_root, to)
        _check_target(target)
        number = _number_of(target)
        newer = [path for path in versions(serving_root) if int(path.name) > number]
        if newer or target.name.startswith("."):
            # On a full disk it can't be written, and the folders tell what matters.
            with contextlib.suppress(OSError):
                _pinning(Ledger.open(serving_root), number).save(serving_root)
        return Rollback(_switch(held, target, newer), [int(p.name) for p in newer])


def _pinning(ledger: Ledger, number: int) -> Ledger:
    withdrawn = {n: digest for n, digest in ledger.withdrawn.items() if n != number}
    return dataclasses.replace(ledger, pinned=number, withdrawn=withdrawn)


def _switch(held: HeldFolder, target: Path, newer: list[Path]) -> Path:
    """Serves `target`; the last rename alone changes which number is the highest."""
    serving_root = held.path
    number = _number_of(target)
    if target.name.startswith("."):
        served = serving_root / str(number)
        _rename(held, target, served)
    else:
        served = target
    for path in newer:
        hidden = hidden_folder(serving_root, int(path.name))
        held.remove(hidden)
        _rename(held, path, hidden)
    return served


def _target(serving_root: Path, to: int | None) -> Path:
    published = versions(serving_root)
    if to is None:
        if len(published) < 2:
            raise _nothing_before(serving_root)
        return published[-2]
    there = withdrawn_folders(serving_root) | {int(path.name): path for path in published}
    if to not in there:
        raise UsageError(
            "R516",
            f"The serving folder {str(serving_root)!r} must have the version, in service or"
            " rolled back.",
            f"Name one of {', '.join(map(str, sorted(there)))}; recsys rollback --list tells"
            " of them.",
            to,
        )
    return there[to]


def _number_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _check_target(target: Path) -> None:
    try:
        verify(target)
    except RecsysError as error:
        raise RecsysError(
            "R517",
            f"The version to roll back to must be whole; {str(target)!r} is damaged: {error.rule}",
            "Nothing was changed. Name another version: recsys rollback --list, --to VERSION.",
            f"{error.code}, {error.received}",
        ) from None


def _rename(held: HeldFolder, path: Path, to: Path) -> None:
    held.rename(path, to)
    with held.opened(to.parent) as folder:
        os.fsync(folder)


def _nothing_before(serving_root: Path) -> RecsysError:
    return RecsysError(
        "R515",
        f"A rollback needs two versions in {str(serving_root)!r}: the served one and an earlier.",
        "Nothing was changed. Push another model: recsys run; push.keep in the config says"
        " how many versions stay.",
        [path.name for path in versions(serving_root)],
    )
