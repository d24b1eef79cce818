"""The checkpoints of a run: saved in the background, atomically, and verified.

A folder of checkpoints holds `120/`, the checkpoint of step 120, and so on:

    120/contents.json   step, identity of the run, its state, and the form of each variable
    120/manifest.json   size and CRC-32 of every other file, see `recsys.system.manifest`; with
                        several processes, of `contents.json` and the files in `manifests/`
    120/manifests/0.json  with several processes: size and CRC-32 of the files that process 0
                        wrote, and so on
    120/…               the arrays; Orbax writes them, every process the parts that it holds

When a checkpoint is restored, the processes share the verification of all files, balanced by size.

A checkpoint is written as `120.writing`, and renamed once its manifest is written. Before it is
deleted, it is renamed to `120.old`. So a folder with a plain number is always complete, even
after a crash, and all others can be removed. A damaged checkpoint is renamed to `120.damaged`.

Orbax's `CheckpointManager` with the same checksums is as fast (256 MiB: 371 ms per save, ours
367 ms; 4 MiB: 76 and 69; medians of 10 saves in one run), but it commits a checkpoint, and
deletes the older one, before the checksums and the files are synced to disk.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import orbax.checkpoint as ocp

from recsys.distributed.coordination import agreed, is_primary, jointly
from recsys.embedding.sharding import logical_rows, physical_rows
from recsys.embedding.table import Table
from recsys.errors import RecsysError
from recsys.system import manifest as manifests
from recsys.system.files import commit_folder, free_there, sync_file
from recsys.system.manifest import Files

# Raised by Orbax, TensorStore and the system if a file can't be read or written.
_FAILURES = (OSError, ValueError, RuntimeError)
DAMAGED = "R331"
"""Error code if every checkpoint is damaged."""
_FORMAT = "2"
_CONTENTS = "contents.json"
_MANIFEST = "manifest.json"
_PARTS = "manifests"
# Orbax gives each process its own folder, and merges their directories in process 0.
_OWN_FOLDER = "ocdbt.process_{}"
_OWNER = re.compile(r"ocdbt\.process_(\d+)/")
_SEALS = itertools.count()  # A barrier's key is used once; all processes count alike.
_BARRIER_MS = 600_000  # As Orbax waits.
_PARTIAL = re.compile(r"\d+\.(writing.*|old)")

Form = list[Any]
"""Shape, name of the dtype, and logical rows of a variable, as JSON.

The rows are the logical ones if the first axis holds the physical rows of an interleaved table
(`recsys.embedding.sharding`), else None.
"""
Variables = Mapping[str, keras.Variable]


@dataclasses.dataclass(frozen=True)
class Restored:
    """The restored state of a run.

    Attributes:
        step: Steps that were done.
        state: The run's state at that step, JSON.
        damaged: What was wrong with each later checkpoint, one sentence each; they were
            renamed to `<step>.damaged`.
    """

    step: int
    state: dict[str, Any]
    damaged: tuple[str, ...]


class CheckpointStore:
    """The newest checkpoints of a run, in their own folder.

    Every process of the run makes a store of the same shared folder, and calls the same
    methods in the same order.

    Args:
        folder: Folder of the checkpoints; made if missing. No two stores may share it.
        identity: Fingerprints of what the checkpoints depend on (config, vocabulary, ...).
            A checkpoint of another identity isn't restored.
        keep: Number of checkpoints to keep, at least one.
        rows: Number of rows of each variable, by path, whose first axis holds the rows
            of an interleaved table; see `interleaved_rows`.

    Example:
        ```python
        store = CheckpointStore(root / "last", {"config": "5e…"}, rows=interleaved_rows(tables))
        restored = store.restore({v.path: v for v in variables})
        ...
        store.save(step, {v.path: array for v, array in zip(variables, arrays)}, {"epoch": 3})
        ...
        store.close()
        ```
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, str],
        keep: int = 2,
        rows: Mapping[str, int] | None = None,
    ) -> None:
        self.folder, self._keep = folder.absolute(), keep
        self._identity = {"format of checkpoints": _FORMAT, **identity}
        self._rows = rows or {}
        if is_primary():
            self._sweep()
            self.folder.mkdir(parents=True, exist_ok=True)
        self._checkpointer = ocp.AsyncCheckpointer(
            # Compression would take time and save nothing: the numbers of tables are noise.
            ocp.PyTreeCheckpointHandler(use_compression=False),
            # If it created them in the background, it would wait for minutes before it fails.
            async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
            # Stores that save the same step at once must not meet at one barrier.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=folder.name
            ),
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending_step = 0
        self.pending: Future[None] | None = None
        """The checkpoint that is being written, if any."""

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, newest first."""
        return steps_in(self.folder)

    # --- saving

    def save(
        self,
        step: int,
        variables: Mapping[str, jax.Array],
        state: Mapping[str, Any],
        after: Future[None] | None = None,
    ) -> None:
        """Saves a checkpoint in the background, after the previous one is done.

        Returns when the arrays may be donated to the next step. On a CPU they aren't
        copied: JAX doesn't reuse a buffer that is still being read. If a checkpoint of
        this step exists, it is kept.

        Args:
            step: Steps done.
            variables: The arrays by the paths of their variables.
            state: State of the run besides its arrays, JSON; the same on every process.
            after: Must be done before this checkpoint is complete, such as another
                checkpoint that it names.

        Raises:
            RecsysError: This or the previous checkpoint couldn't be written, or the
                existing one has another identity.
        """
        self.wait()
        if agreed(lambda: self._holds(step)):
            return
        contents = json.dumps(
            {
                "step": step,
                "identity": self._identity,
                "state": state,
                "forms": self._forms(variables),
            }
        )
        writing = self.folder / f"{step}.writing"
        try:
            self._checkpointer.save(writing, args=ocp.args.PyTreeSave(dict(variables)), force=True)
        except _FAILURES as error:
            raise self._not_written(step, error) from error
        self._pending_step = step
        self.pending = self._worker.submit(
            self._finish, writing, step, contents, f"sealed {next(_SEALS)}", after
        )

    def wait(self) -> None:
        """Waits until the last checkpoint is complete on the disk.

        On other processes than the primary, until the process's own part is.

        Raises:
            RecsysError: It couldn't be written.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            return
        try:
            pending.result()
        except _FAILURES as error:
            raise self._not_written(self._pending_step, error) from error

    def close(self) -> None:
        """Waits for the last checkpoint, and stops the background threads."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            with suppress(*_FAILURES):  # Orbax raises the error of the failed save again.
                self._checkpointer.close()

    def _holds(self, step: int) -> bool:
        if not (self.folder / str(step)).exists():
            return False
        try:
            self._contents(step)
        except manifests.ManifestError:
            self._rename(step, "damaged")
            return False
        return True

    def _finish(
        self, writing: Path, step: int, contents: str, barrier: str, after: Future[None] | None
    ) -> None:
        """Completes the checkpoint that Orbax wrote, and deletes those that are too old.

        Later checkpoints are deleted too: the run was reset to a step before them.
        """
        self._checkpointer.wait_until_finished()
        n_processes = jax.process_count()
        if n_processes > 1:
            try:
                _seal_part(writing, jax.process_index(), n_processes)
            finally:  # A missing part of another process is reported when it is sealed.
                ocp.multihost.get_barrier_sync_fn()(key=barrier, timeout_ms=_BARRIER_MS)
        if after is not None:
            after.result()
        if not is_primary():
            return
        (writing / _CONTENTS).write_text(contents, encoding="utf-8")
        _seal(writing, n_processes)
        commit_folder(writing, self.folder / str(step))
        kept = [earlier for earlier in self.steps() if earlier <= step][: self._keep]
        for old in set(self.steps()) - set(kept):
            shutil.rmtree(self._rename(old, "old"))

    def _rename(self, step: int, ending: str) -> Path:
        """Renames a checkpoint, so that it no longer counts as one."""
        renamed = self.folder / f"{step}.{ending}"
        shutil.rmtree(renamed, ignore_errors=True)
        return (self.folder / str(step)).rename(renamed)

    def _sweep(self) -> None:
        """Deletes partial checkpoints, if they can be deleted."""
        for path in self.folder.glob("*"):
            if _PARTIAL.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def _not_written(self, step: int, error: Exception) -> RecsysError:
        """Deletes what was written, and returns the error to raise."""
        free = free_there(self.folder)
        if is_primary():
            self._sweep()
        is_full = "No space left" in str(error)
        last = next(iter(self.steps()), None)
        return RecsysError(
            "R330",
            f"The checkpoint of step {step} must be written whole into {self.folder}{free}.",
            "Free disk space or change the permissions, and run again: "
            + ("it starts from scratch." if last is None else f"it resumes from step {last}."),
            "No space left on device" if is_full else str(error),
        )

    # --- restoring

    def restore(self, variables: Variables, step: int | None = None) -> Restored | None:
        """Assigns the newest undamaged checkpoint to `variables`.

        Nothing is assigned before all checks pass: the checkpoint belongs to the run,
        holds exactly these variables, and all its files match their checksums. The
        devices may differ from those that saved it. The arrays that the variables hold
        are freed.

        Args:
            variables: The variables by their paths.
            step: The only step to accept; None: the newest undamaged one.

        Returns:
            The step to resume from; None if there is no checkpoint.

        Raises:
            RecsysError: The checkpoint belongs to another run, doesn't fit, or all are
                damaged.
        """
        self.wait()
        wanted = self._forms(variables)
        chosen = self._choose(wanted, step)
        if chosen is None:
            return None
        folder = self.folder / str(chosen["step"])
        try:
            self._read(folder, chosen["forms"], variables)
        except _FAILURES as error:
            raise RecsysError(
                "R335",
                f"Checkpoint {folder} must be readable; its files are whole.",
                "Install the version of orbax-checkpoint that wrote it, or remove the folder.",
                str(error),
            ) from error
        return Restored(chosen["step"], chosen["state"], tuple(chosen["damaged"]))

    def _choose(self, wanted: Mapping[str, Form], only: int | None) -> dict[str, Any] | None:
        """Returns the contents of the newest undamaged checkpoint, and the damage of later ones.

        The result is the same in every process; each reads its share of the files.
        """
        damaged: list[tuple[int, str]] = []
        while True:
            candidate = agreed(functools.partial(self._candidate, wanted, only, damaged))
            if candidate is None:
                return None
            damaged = candidate["damaged"]
            reasons = jointly(functools.partial(self._damage_in_share, candidate))
            damage = next((reason for reason in reasons if reason is not None), None)
            if damage is None:
                agreed(functools.partial(self._set_aside, damaged))
                return {**candidate["contents"], "damaged": [text for _, text in damaged]}
            step = candidate["contents"]["step"]
            damaged = [*damaged, (step, f"step {step}: {damage}")]

    def _set_aside(self, damaged: Sequence[tuple[int, str]]) -> None:
        for step, _ in damaged:
            self._rename(step, "damaged")

    def _candidate(
        self, wanted: Mapping[str, Form], only: int | None, damaged: Sequence[tuple[int, str]]
    ) -> dict[str, Any] | None:
        """Returns the newest checkpoint that may be undamaged: its contents, files and digest.

        Args:
            wanted: Variables that it must hold.
            only: The only step to accept; None: any.
            damaged: Steps that are damaged, and why; returned with those found here.

        Raises:
            RecsysError: All checkpoints are damaged.
        """
        worse = list(damaged)
        past = {step for step, _ in damaged}
        for step in [step for step in self.steps() if only in (None, step) and step not in past]:
            folder = self.folder / str(step)
            try:
                contents = self._contents(step)
                _check_fit(folder, contents["forms"], wanted)
                files = _read_files(folder)
                manifests.verify_names(folder / _MANIFEST, files)
            except manifests.ManifestError as damage:
                worse.append((step, f"step {step}: {damage}"))
                continue
            digest = manifests.manifest_digest(folder / _MANIFEST)
            return {"contents": contents, "files": files, "digest": digest, "damaged": worse}
        if worse:
            raise RecsysError(
                DAMAGED,
                f"One of the {len(worse)} checkpoints in {self.folder} must be whole"
                f" ({'; '.join(text for _, text in worse)}).",
                "Remove the folder to train from scratch.",
            )
        return None

    def _damage_in_share(self, candidate: Mapping[str, Any]) -> str | None:
        """Returns what is wrong with a file that this process verifies; None if nothing is.

        Raises:
            RecsysError: This process sees another folder than the primary.
        """
        folder = self.folder / str(candidate["contents"]["step"])
        if manifests.manifest_digest(folder / _MANIFEST) != candidate["digest"]:
            raise RecsysError(
                "R338",
                f"Every process of a training must see the same checkpoint {folder}.",
                "Name a folder with --checkpoints that all hosts share.",
                f"process {jax.process_index()} doesn't see what process 0 does",
            )
        own = manifests.share_of(candidate["files"], jax.process_index(), jax.process_count())
        return manifests.damage_in(folder, own)

    def _contents(self, step: int) -> dict[str, Any]:
        """Returns the contents of a checkpoint of this run, without its arrays.

        Raises:
            ManifestError: It is damaged.
            RecsysError: It belongs to another run.
        """
        folder = self.folder / str(step)
        files = manifests.read_manifest(folder / _MANIFEST)["files"]
        if _CONTENTS not in files:
            raise manifests.ManifestError(_MANIFEST, f"it doesn't list {_CONTENTS}")
        manifests.verify_files(folder, {_CONTENTS: files[_CONTENTS]})
        contents: dict[str, Any] = json.loads((folder / _CONTENTS).read_text(encoding="utf-8"))
        saved, own = contents["identity"], self._identity
        wrong = [part for part in sorted({*saved, *own}) if saved.get(part) != own.get(part)]
        if wrong:
            raise RecsysError(
                "R332",
                f"Checkpoint {folder} must be of this run; it is of another"
                f" {' and another '.join(wrong)}.",
                "Restore the settings under which it was saved; or remove the folder"
                f" {self.folder}, or choose another one, to train from scratch.",
                {part: (saved.get(part), own.get(part)) for part in wrong},
            )
        return contents

    def _forms(self, variables: Mapping[str, Any]) -> dict[str, Form]:
        return {
            path: [list(v.shape), keras.backend.standardize_dtype(v.dtype), self._rows.get(path)]
            for path, v in variables.items()
        }

    def _read(self, folder: Path, saved: Mapping[str, Form], variables: Variables) -> None:
        """Assigns the arrays of a checkpoint to `variables`, which it fits.

        Each device reads its own part. The arrays of the variables are freed first, so the
        devices never hold a table twice.
        """
        shardings = {path: variable.value.sharding for path, variable in variables.items()}
        for variable in variables.values():
            variable.value.delete()
        same = {path for path in variables if saved[path][0] == list(variables[path].shape)}
        arguments = {
            path: ocp.ArrayRestoreArgs(
                sharding=shardings[path], global_shape=tuple(saved[path][0]), dtype=saved[path][1]
            )
            for path in same
        }
        for path, array in self._arrays(folder, arguments).items():
            variables[path].assign(array)
        for path in sorted(variables.keys() - same):
            form, sharding = saved[path], shardings[path]
            variables[path].assign(self._repadded(folder, path, form, variables[path], sharding))

    def _repadded(
        self, folder: Path, path: str, saved: Form, variable: keras.Variable, sharding: Any
    ) -> jax.Array:
        """Returns a table that was saved with another padding, read through the host.

        The padding depends on the number of devices, and is the same for most numbers. Each
        device receives its own part.
        """
        (places, _), _, rows = saved
        on_host = {path: ocp.RestoreArgs(restore_type=np.ndarray)}
        whole, shape = self._arrays(folder, on_host)[path], tuple(variable.shape)

        def part(index: Any) -> np.ndarray:
            row = logical_rows(np.arange(shape[0])[index[0]], shape[0])
            values = whole[physical_rows(np.minimum(row, rows - 1), places)]
            return np.where((row < rows)[:, None], values, np.zeros_like(values))[:, index[1]]

        return jax.make_array_from_callback(shape, sharding, part)

    def _arrays(self, folder: Path, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arrays that `arguments` name, restored as they specify."""
        item = dict.fromkeys(arguments, 0)
        arrays: dict[str, Any] = self._checkpointer.restore(
            folder,
            args=ocp.args.PyTreeRestore(item=item, restore_args=arguments, partial_restore=True),
        )
        return arrays


def steps_in(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints in a folder, newest first."""
    names = [path.name for path in folder.glob("*") if path.is_dir()]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def interleaved_rows(tables: Iterable[Table]) -> dict[str, int]:
    """Returns the `rows` of a `CheckpointStore` for the tables of a model."""
    return {
        variable.path: table.rows
        for table in tables
        if table.is_interleaved
        for variable in table.variables_by_row
    }


def _check_fit(folder: Path, saved: Mapping[str, Form], wanted: Mapping[str, Form]) -> None:
    """Checks that a checkpoint holds exactly the variables of a model.

    Interleaved tables with the same logical rows fit, whatever their padding.

    Raises:
        RecsysError: It doesn't; names the first variable that differs.
    """

    def essence(form: Form | None) -> Any:
        return form if form is None or form[2] is None else [form[0][1:], *form[1:]]

    paths = sorted({*saved, *wanted})
    wrong = [path for path in paths if essence(saved.get(path)) != essence(wanted.get(path))]
    if wrong:
        path, more = wrong[0], f" (and {len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise RecsysError(
            "R333",
            f"In checkpoint {folder} variable {path!r} must be {_form_text(wanted.get(path))}, as"
            f" in the model; it is {_form_text(saved.get(path))}{more}.",
            "Restore the config and data under which it was saved; or remove the folder"
            f" {folder.parent}, or choose another one, to train from scratch.",
        )


def _form_text(form: Form | None) -> str:
    if form is None:
        return "absent"
    shape, dtype, rows = form
    return f"{dtype}{shape}" + ("" if rows is None else f" of {rows:,} rows")


# --- manifests


def _seal_part(folder: Path, process: int, n_processes: int) -> None:
    """Writes the manifest of the files that a process wrote, and syncs them to disk."""
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


def _seal(folder: Path, n_processes: int) -> None:
    """Writes the manifest of a checkpoint whose other files are complete."""
    names = {_CONTENTS, *(f"{_PARTS}/{process}.json" for process in range(n_processes))}
    if n_processes == 1:  # A single process has no manifest of its own.
        names = manifests.file_names(folder)
    manifests.write_manifest(folder / _MANIFEST, {}, manifests.checksums(folder, names, "crc32"))


def _read_files(folder: Path) -> Files:
    """Returns size and checksum of every file of a checkpoint.

    Raises:
        ManifestError: A manifest is missing or damaged.
    """
    files: Files = dict(manifests.read_manifest(folder / _MANIFEST)["files"])
    parts = {name: files[name] for name in files if name.startswith(f"{_PARTS}/")}
    manifests.verify_files(folder, parts)
    for name in sorted(parts):
        files |= manifests.read_manifest(folder / name)["files"]
    return files
