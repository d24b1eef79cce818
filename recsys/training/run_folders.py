"""The folders of a training run, named by the fingerprint of its config, data and code.

    <checkpoints>/<fingerprint>/last/       the newest checkpoints
    <checkpoints>/<fingerprint>/best/       the model that validation found best
    <checkpoints>/<fingerprint>/identity.json  the parts of the fingerprint
    <tensorboard>/<fingerprint>/

They survive a killed run. The same run finds them again, whatever its output folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from recsys.data.dataset import PARTS
from recsys.data.store import MANIFEST
from recsys.errors import BusyError, RecsysError
from recsys.fingerprint import code_fingerprint
from recsys.registry.file_option import BY_CONTENT
from recsys.system.events import note
from recsys.system.files import commit_text, digest_of_files, remove
from recsys.system.run_lock import LOCK_NAME, SILENT_S, Owner, run_lock
from recsys.tasks.config import TrainStage

_KEPT_OTHERS = 2
_TAKE_OVER_S = 10.0
_IDENTITY = "identity.json"
# The result doesn't depend on the arrangement of the devices.
_CHANGES_NOTHING = ("mesh", "layout")


@dataclasses.dataclass(frozen=True)
class RunFolders:
    """The folders of one run.

    Attributes:
        identity: Fingerprints of the config, the data, the code, the earlier model, and the items
            drawn for rows.
        checkpoints: Folder of its checkpoints.
        tensorboard: Folder of its logs for TensorBoard; None: no logs.
    """

    identity: dict[str, str]
    checkpoints: Path
    tensorboard: Path | None

    @classmethod
    def of_run(
        cls,
        root: Path,
        stage: TrainStage,
        data: Path,
        base: str | None = None,
        tensorboard: Path | None = None,
        candidates: str | None = None,
    ) -> Self:
        """Returns the folders of a run.

        Two runs with the same identity compute the same, so one may continue the other's
        checkpoint. The interval between checkpoints, for example, is not part of it.

        Args:
            root: Folder of the checkpoints of all runs.
            stage: The model and the training loop.
            data: Data folder of the InteractionEncoder.
            base: Fingerprint of the earlier model of a warm start; None for a cold start.
            tensorboard: Folder of the logs of all runs for TensorBoard; None: no logs.
            candidates: Fingerprint of the items drawn for rows; None: none.

        Raises:
            RecsysError: A file of the data can't be read.
        """
        # It imports JAX, which the parent process doesn't need.
        from recsys.distributed.coordination import agreed

        config = stage.model_dump(mode="json", exclude={*_CHANGES_NOTHING}, context=BY_CONTENT)
        del config["train"]["checkpoint"], config["train"]["profile_steps"]
        if base is None:  # It has no effect on a cold start.
            del config["warm_start"]
        identity = {
            "config": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
            "data": agreed(lambda: _data_fingerprint(data)),
            "code": code_fingerprint(stage),
            **({} if base is None else {"base": base}),
            **({} if candidates is None else {"candidates": candidates}),
        }
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        return cls(identity, root / name, None if tensorboard is None else tensorboard / name)

    @staticmethod
    def root_beside(model: Path) -> Path:
        """Returns the default folder of checkpoints: beside the model."""
        return model.absolute().parent / "checkpoints"

    @property
    def last(self) -> Path:
        """Folder of the newest checkpoints."""
        return self.checkpoints / "last"

    @property
    def best(self) -> Path:
        """Folder of the best model's checkpoint, without slots."""
        return self.checkpoints / "best"

    @property
    def profile(self) -> Path:
        """Folder of the trace of JAX's profiler, where TensorBoard finds it."""
        return self.tensorboard or self.checkpoints / "profile"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the checkpoints against other trainings inside the context.

        Raises:
            RecsysError: Another training holds the lock (R380).
        """
        with _locked(self.checkpoints):
            commit_text(json.dumps(self.identity) + "\n", self.checkpoints / _IDENTITY)
            yield

    def note_what_changed(self) -> None:
        """Reports why a run begins from scratch although another run has checkpoints."""
        for path in self._others():
            if (path / "training").is_dir():
                continue  # The work of a pair.
            with suppress(OSError, ValueError):
                other = json.loads((path / _IDENTITY).read_text())
                parts = dict.fromkeys([*self.identity, *other])
                changed = [part for part in parts if other.get(part) != self.identity.get(part)]
                note(
                    f"Trains from the beginning: {' and '.join(changed)} changed since the"
                    f" checkpoints in {path} were written."
                )
                return

    def remove_others(self) -> list[Path]:
        """Removes the checkpoints of other runs except the two newest, and returns them.

        A checkpoint is as large as tables and slots together, and each day's data make
        another run. The newest ones are kept for a run that was killed.
        """
        removed = []
        for path in self._others()[_KEPT_OTHERS:]:
            with suppress(RecsysError, OSError):
                with run_lock(path):
                    pass  # No process writes it.
                remove(path)
                removed.append(path)
                note(f"Removed the checkpoints of an older run: {path}")
        return removed

    def _others(self) -> list[Path]:
        """Returns the folders of other runs, the most recently written first."""
        others = [
            path
            for path in self.checkpoints.parent.glob("[0-9a-f]" * 16)
            if path.name != self.checkpoints.name
        ]
        return sorted(others, key=_written, reverse=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder; waits if the holder may be a dead process on another host."""
    deadline = time.monotonic() + SILENT_S + _TAKE_OVER_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(run_lock(folder))
                break
            except BusyError as error:
                holder = Owner.read(folder / LOCK_NAME)
                is_here = holder is None or holder.is_alive() is not None
                if is_here or time.monotonic() > deadline:
                    raise RecsysError(
                        "R380",
                        f"Only one training at a time may write checkpoints in {str(folder)!r}.",
                        "Wait until the other one ends, or stop it; or name another folder with"
                        " --checkpoints.",
                        error.rule,
                    ) from None
            time.sleep(1.0)
        yield


def _written(folder: Path) -> float:
    """Returns the modification time of a run's newest checkpoint [seconds since 1970]."""
    times = [0.0]
    with suppress(FileNotFoundError):  # Another run may be removing it.
        for path in (folder, *folder.glob("last/*")):
            times.append(path.stat().st_mtime)
    return max(times)


def _data_fingerprint(data: Path) -> str:
    """Returns a fingerprint of the content of a data folder.

    The store's manifest holds the sha256 of each of its files.
    """
    files = [data / "store" / MANIFEST]
    for part in PARTS:
        files += [file for file in (data / part).rglob("*") if file.is_file()]
    try:
        return digest_of_files(data, files)
    except OSError as error:
        raise RecsysError(
            "R374",
            f"The files of the data folder {str(data)!r} must be readable.",
            "Name the folder that the InteractionEncoder wrote, or run again.",
            f"{error.filename}: {error.strerror}",
        ) from None
