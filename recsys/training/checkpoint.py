"""The checkpoints of a run: saved in the background, atomic, and verified.

Orbax writes and reads the arrays: every process the parts that its devices hold, in
the background. `recsys.training.checkpoint_files` commits them, with checksums and with
the identity of the run that they belong to.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import orbax.checkpoint as ocp

from recsys.embedding.sharding import logical_rows, physical_rows
from recsys.errors import RecsysError, UsageError
from recsys.training import checkpoint_files as files
from recsys.training.checkpoint_files import Form, check_fit, form_of
from recsys.training.distributed import agreed, is_primary

# What Orbax, TensorStore and the system raise where a file can't be read or written.
_FAILURES = (OSError, ValueError, RuntimeError)
DAMAGED = "R331"
"""Code of the error that no checkpoint is whole."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """The restored state from which a run continues.

    Attributes:
        step: Steps that were done.
        state: The run's state at that step, JSON.
        damaged: What was wrong with each later checkpoint, one sentence for each; they
            were set aside as `<step>.damaged`.
    """

    step: int
    state: dict[str, Any]
    damaged: tuple[str, ...]


class CheckpointStore:
    """The newest checkpoints of a run, in a folder of their own.

    Every process of the run makes a store on the same folder, which all must reach,
    and calls the same methods in the same order.

    Args:
        folder: Where the checkpoints lie; made if missing. No two stores may share it.
        identity: What the checkpoints belong to: a fingerprint for each part (config,
            vocabulary, ...). A checkpoint of another identity isn't restored.
        keep: How many checkpoints stay.
        rows: Number of rows of each variable, by path, whose first axis holds the rows
            of a table spread over its places; see `spread_rows`.

    Example:
        ```python
        store = CheckpointStore(root / "last", {"config": "5e…"}, rows=spread_rows(tables))
        restored = store.restore({v.path: v for v in variables})
        ...
        store.save(step, {v.path: array for v, array in zip(variables, arrays)}, {"epoch": 3})
        ...
        store.close()
        ```

    Raises:
        UsageError: `keep` is less than 1.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, str],
        keep: int = 2,
        rows: Mapping[str, int] | None = None,
    ) -> None:
        if keep < 1:
            raise UsageError("R334", "A run must keep at least one checkpoint.", "Use 1.", keep)
        self._folder, self._keep = folder.absolute(), keep
        self._identity = {"format of checkpoints": files.FORMAT, **identity}
        self._rows = rows or {}
        if is_primary():
            files.sweep(self._folder)
            self._folder.mkdir(parents=True, exist_ok=True)
        self._checkpointer = ocp.AsyncCheckpointer(
            # Numbers of tables are noise: compression would take time and save nothing.
            ocp.PyTreeCheckpointHandler(use_compression=False),
            # In the background a folder that can't be made is waited for, for minutes.
            async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
            # Stores that save the same step at once must not meet at one barrier.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=folder.name
            ),
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._pending_step = 0

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints."""
        return self._folder

    @property
    def pending(self) -> Future[None] | None:
        """The checkpoint that is on its way to the disk, if any."""
        return self._pending

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, newest first."""
        return files.steps_in(self._folder)

    def latest(self) -> int | None:
        """Returns the step of the newest checkpoint; None if there is none."""
        return next(iter(self.steps()), None)

    # --- saving

    def save(
        self,
        step: int,
        variables: Mapping[str, jax.Array],
        state: Mapping[str, Any],
        after: Future[None] | None = None,
    ) -> None:
        """Saves a checkpoint in the background, after the last one is done.

        Returns when the arrays may be donated to the next step. On a CPU they aren't
        copied: JAX leaves alone what is still being read, and that step writes
        elsewhere. A checkpoint of this step that is there already stays.

        Args:
            step: Steps done.
            variables: The arrays by the paths of their variables.
            state: What the run needs to go on, JSON; alike on every process.
            after: What must be done before this checkpoint counts, such as another one
                that it names.

        Raises:
            RecsysError: This or the last checkpoint couldn't be written, or the one
                that is there belongs to something else.
        """
        self.wait()
        if agreed(lambda: self._holds(step)):
            return
        forms = self._forms(variables)
        contents = files.Contents(step, self._identity, state, forms).to_json()
        writing = files.writing_folder(self._folder, step)
        try:
            self._checkpointer.save(writing, args=ocp.args.PyTreeSave(dict(variables)), force=True)
        except _FAILURES as error:
            raise self._not_written(step, error) from error
        self._pending_step = step
        self._pending = self._worker.submit(self._finish, contents, after)

    def wait(self) -> None:
        """Returns when the last checkpoint is whole on the disk.

        On a process that isn't the primary one its own part is.

        Raises:
            RecsysError: It couldn't be written.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except _FAILURES as error:
            raise self._not_written(self._pending_step, error) from error

    def close(self) -> None:
        """Waits, and ends what runs in the background; see `wait`."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            self._checkpointer.close()

    def _holds(self, step: int) -> bool:
        folder = files.folder_of(self._folder, step)
        if not folder.exists():
            return False
        try:
            self._check_identity(folder, files.contents_in(folder))
        except files.DamageError:
            files.set_aside(self._folder, step)
            return False
        return True

    def _finish(self, contents: dict[str, Any], after: Future[None] | None) -> None:
        """Makes what Orbax writes a whole checkpoint, and deletes those that are too old."""
        self._checkpointer.wait_until_finished()
        if after is not None:
            after.result()
        if is_primary():
            files.commit(self._folder, contents)
            files.prune(self._folder, contents["step"], self._keep)

    def _not_written(self, step: int, error: Exception) -> RecsysError:
        """Clears away what was written, and returns the error to raise."""
        free = _free_space(self._folder)
        if is_primary():
            files.sweep(self._folder)
        is_full = "No space left" in str(error)
        last = self.latest()
        return RecsysError(
            "R330",
            f"The checkpoint of step {step} must be written whole into {self._folder} ({free}).",
            "Free some space or mend the permissions, and run again: "
            + ("it starts anew." if last is None else f"it goes on from step {last}."),
            "No space left on device" if is_full else str(error),
        )

    # --- restoring

    def restore(self, variables: Variables, step: int | None = None) -> Restored | None:
        """Gives `variables` the numbers of the newest whole checkpoint.

        Nothing is assigned before all checks are passed: that the checkpoint belongs
        to the run, holds these variables and no others, and every byte is as it was
        written. The devices need not be those, or as many, that saved it. The arrays
        that the variables hold are freed.

        Args:
            variables: The variables by their paths.
            step: Step of the only checkpoint to accept; None: the newest whole one.

        Returns:
            Where the run goes on; None if there is no checkpoint.

        Raises:
            RecsysError: The checkpoint belongs to something else or doesn't fit, or
                none is whole.
        """
        self.wait()
        wanted = self._forms(variables)
        chosen = agreed(lambda: self._choose(wanted, step))
        if chosen is None:
            return None
        contents = files.Contents.from_json(chosen["contents"])
        folder = files.folder_of(self._folder, contents.step)
        try:
            read_into(self._checkpointer, folder, contents.forms, variables)
        except _FAILURES as error:
            raise RecsysError(
                "R335",
                f"Checkpoint {folder} must be readable; its files are whole.",
                "Install the version of orbax-checkpoint that wrote it, or remove the folder.",
                str(error),
            ) from error
        return Restored(contents.step, dict(contents.state), tuple(chosen["damaged"]))

    def _choose(self, wanted: Mapping[str, Form], only: int | None) -> dict[str, Any] | None:
        """Returns the newest whole checkpoint, and what is wrong with those after it."""
        damaged: dict[int, str] = {}
        steps = files.steps_in(self._folder)
        for step in steps if only is None else [step for step in steps if step == only]:
            folder = files.folder_of(self._folder, step)
            try:
                contents = files.contents_in(folder)
                self._check_identity(folder, contents)
                check_fit(folder, contents.forms, wanted)
                files.check_files(folder)
            except files.DamageError as damage:
                damaged[step] = f"step {step}: {damage}"
                continue
            for other in damaged:
                files.set_aside(self._folder, other)
            return {"contents": contents.to_json(), "damaged": list(damaged.values())}
        if damaged:
            raise RecsysError(
                DAMAGED,
                f"One of the {len(damaged)} checkpoints in {self._folder} must be whole"
                f" ({'; '.join(damaged.values())}).",
                "Remove the folder to train anew.",
            )
        return None

    def _check_identity(self, folder: Path, contents: files.Contents) -> None:
        saved, own = contents.identity, self._identity
        wrong = [k for k in sorted({*saved, *own}) if saved.get(k) != own.get(k)]
        if wrong:
            raise RecsysError(
                "R332",
                f"Checkpoint {folder} must be of this run; it is of another"
                f" {' and another '.join(wrong)}.",
                "Go back to what it was saved under; or remove the folder"
                f" {self._folder}, or choose another one, to train anew.",
                {part: (saved.get(part), own.get(part)) for part in wrong},
            )

    def _forms(self, variables: Mapping[str, Any]) -> dict[str, Form]:
        return {path: form_of(v, self._rows.get(path)) for path, v in variables.items()}


def spread_rows(tables: Any) -> dict[str, int]:
    """Returns the `rows` of a `CheckpointStore` for the tables of a model.

    Args:
        tables: `recsys.embedding.layout.tables_of(model)`.
    """
    return {
        variable.path: table.rows
        for table in tables
        if table.is_interleaved
        for variable in table.variables_by_row
    }


def _free_space(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free:,} bytes free"
    except OSError as error:
        return error.strerror or "not to be reached"


Variables = Mapping[str, keras.Variable]


def read_into(
    checkpointer: ocp.AsyncCheckpointer,
    folder: Path,
    saved: Mapping[str, Form],
    variables: Variables,
) -> None:
    """Gives `variables` the numbers of a checkpoint that fits them.

    Each device reads its own part. What the variables hold is freed first, so the
    devices never hold a table twice.
    """
    places = {path: variable.value.sharding for path, variable in variables.items()}
    for variable in variables.values():
        variable.value.delete()

    def assign(read: Mapping[str, Any]) -> None:
        for path, array in read.items():
            variables[path].assign(array)

    same = [path for path in variables if saved[path].shape == tuple(variables[path].shape)]
    arguments = {
        path: ocp.ArrayRestoreArgs(
            sharding=places[path], global_shape=saved[path].shape, dtype=saved[path].dtype
        )
        for path in same
    }
    assign(_read(checkpointer, folder, arguments))
    for path in sorted(set(variables) - set(same)):
        # Another padding, which few numbers of devices have: the table passes through
        # the host's memory.
        table = _read(checkpointer, folder, {path: ocp.RestoreArgs(restore_type=np.ndarray)})[path]
        shape, rows = tuple(variables[path].shape), saved[path].rows
        assert rows is not None  # noqa: S101 only spread tables fit another shape
        part = _replaced(table, shape, rows)
        assign({path: jax.make_array_from_callback(shape, places[path], part)})


def _read(
    checkpointer: ocp.AsyncCheckpointer, folder: Path, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arrays that `arguments` name, read as they say."""
    read: dict[str, Any] = checkpointer.restore(
        folder,
        args=ocp.args.PyTreeRestore(
            item=dict.fromkeys(arguments, 0), restore_args=arguments, partial_restore=True
        ),
    )
    return read


def _replaced(table: np.ndarray, shape: tuple[int, ...], rows: int) -> Callable[[Any], np.ndarray]:
    """Returns a function from an index to that part of `table` in places of `shape`.

    Args:
        table: Values `[places, width]`.
        shape: The other shape `[other places, width]`; its padding is zero.
        rows: Rows that mean something.
    """

    def part(index: Any) -> np.ndarray:
        row = logical_rows(np.arange(shape[0])[index[0]], shape[0])
        columns = table[:, index[1]]
        out = np.zeros((len(row), columns.shape[1]), table.dtype)
        inside = row < rows
        out[inside] = columns[physical_rows(row[inside], len(table))]
        return out

    return part
