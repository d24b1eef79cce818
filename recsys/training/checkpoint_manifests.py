"""The manifests of a checkpoint: each process lists the files that it wrote.

    manifest.json      size and CRC-32 of `contents.json` and of the files in `manifests/`
    manifests/0.json   size and CRC-32 of the files that process 0 wrote, and so on

A single process lists all files in `manifest.json`. When a checkpoint is restored, the processes
of that run share the verification of all files, balanced by size.
"""

from __future__ import annotations

import re
from pathlib import Path

from recsys.system import manifest as manifests
from recsys.system.commit import sync_file
from recsys.system.manifest import Files

MANIFEST = "manifest.json"
_PARTS = "manifests"
# Orbax gives each process its own folder, and merges their directories in process 0.
_OWN_FOLDER = "ocdbt.process_{}"
_OWNER = re.compile(r"ocdbt\.process_(\d+)/")


def seal_part(folder: Path, process: int, n_processes: int) -> None:
    """Writes the manifest of the files that a process wrote, and syncs them to disk.

    Args:
        folder: The checkpoint, whose arrays are written.
        process: Index of this process.
        n_processes: Number of processes.

    Raises:
        OSError: A file can't be read, or the disk is full.
    """
    if process:
        own = _OWN_FOLDER.format(process)
        names = {f"{own}/{name}" for name in manifests.file_names(folder / own)}
    else:
        every = manifests.file_names(folder)
        names = {name for name in every if _owner(name, n_processes) == 0}
    files = manifests.checksums(folder, names, "crc32")
    for name in names:  # The data of another host are only in its memory.
        sync_file(folder / name)
    (folder / _PARTS).mkdir(exist_ok=True)
    manifests.write_manifest(folder / _PARTS / f"{process}.json", {}, files)


def _owner(name: str, n_processes: int) -> int | None:
    """Returns the process that wrote a file; None for a manifest."""
    if name.startswith(f"{_PARTS}/"):
        return None
    own = _OWNER.match(name)
    process = 0 if own is None else int(own[1])
    return process if process < n_processes else 0


def seal(folder: Path, names: set[str], n_processes: int) -> None:
    """Writes the manifest of a checkpoint whose other files are complete.

    Args:
        folder: The checkpoint.
        names: The files that no process has listed.
        n_processes: Number of processes that wrote it; a single one has no manifest of its own.

    Raises:
        OSError: A file is missing, or the disk is full.
    """
    if n_processes == 1:
        names = manifests.file_names(folder)
    else:
        names = names | {f"{_PARTS}/{process}.json" for process in range(n_processes)}
    manifests.write_manifest(folder / MANIFEST, {}, manifests.checksums(folder, names, "crc32"))


def read_files(folder: Path) -> Files:
    """Returns size and checksum of every file of a checkpoint.

    Raises:
        ManifestError: A manifest is missing or damaged.
    """
    files: Files = dict(manifests.read_manifest(folder / MANIFEST)["files"])
    parts = {name: files[name] for name in files if name.startswith(f"{_PARTS}/")}
    manifests.verify_files(folder, parts)
    for name in sorted(parts):
        files |= manifests.read_manifest(folder / name)["files"]
    return files
