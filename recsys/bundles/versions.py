"""The published versions of a serving root, and a registry of the withdrawn ones.

The folders show which versions exist. A small file next to them records the rest: the highest
number ever used, the versions that were rolled back, and the target of a rollback. If the file is
missing or damaged, only the folders are used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pydantic

from recsys.bundles.bundle import manifest_digest
from recsys.errors import RecsysError
from recsys.strict import Strict
from recsys.system.commit import commit_file
from recsys.system.files import read_plain

LEDGER = ".versions.json"
HIDDEN = ".publish-"
"""Start of the names of what a publisher is at; after a kill it is debris."""
_WITHDRAWN = ".withdrawn-"
_LONGEST = 1 << 20
_MOST_WITHDRAWN = 1000


_HIGHEST_VERSION = 2**63 - 1
"""TensorFlow Serving's versions are int64."""


def versions(serving_root: Path) -> list[Path]:
    """Returns the folders of the published versions, the oldest first."""
    return list(_numbered(serving_root, "").values())


def withdrawn_folders(serving_root: Path) -> dict[int, Path]:
    """Returns the folders of the versions that were rolled back, by number, ascending."""
    return _numbered(serving_root, _WITHDRAWN)


def _numbered(serving_root: Path, prefix: str) -> dict[int, Path]:
    paths = serving_root.iterdir() if serving_root.is_dir() else ()
    named = [path for path in paths if path.name.startswith(prefix)]
    numbered = [path for path in named if is_version(path.name.removeprefix(prefix))]
    folders = [path for path in numbered if path.is_dir() and not path.is_symlink()]
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
    """Highest number that was ever given; 0 before the first."""
    pinned: _Number | None = None
    """The version that the last rollback chose, and that is kept."""
    withdrawn: dict[_Number, str] = pydantic.Field(default_factory=dict)
    """Digest of the manifest of each version that was rolled back."""

    @classmethod
    def open(cls, serving_root: Path) -> VersionRegistry:
        """Reads the registry, and what the folders know better."""
        try:
            kept = cls.model_validate_json(read_plain(serving_root / LEDGER, _LONGEST))
        except (OSError, ValueError):
            kept = cls()
        there = {int(path.name) for path in versions(serving_root)}
        withdrawn = kept.withdrawn | {
            number: digest
            for number, path in withdrawn_folders(serving_root).items()
            if (digest := manifest_digest(path)) is not None
        }
        # Whatever has a number's name, be it a link or a file, TensorFlow Serving may read.
        taken = {int(path.name) for path in serving_root.iterdir() if is_version(path.name)}
        return cls(
            highest=max([kept.highest, *taken, *withdrawn]),
            pinned=kept.pinned if kept.pinned in there else None,
            withdrawn={n: withdrawn[n] for n in sorted(withdrawn.keys() - there)},
        )

    def save(self, serving_root: Path, **changes: Any) -> None:
        """Writes the registry in one step, with some fields changed."""
        fields = self.model_dump() | changes
        fields["withdrawn"] = dict(list(fields["withdrawn"].items())[-_MOST_WITHDRAWN:])
        temporary = serving_root / f"{HIDDEN}versions.json"
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8") as file:  # Never through a link.
            json.dump(fields, file)
        commit_file(temporary, serving_root / LEDGER)


def hidden_folder(serving_root: Path, number: int) -> Path:
    """Returns the hidden folder of the version `number` after a rollback."""
    return serving_root / f"{_WITHDRAWN}{number}"
