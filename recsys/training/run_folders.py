"""The folders of a training run, named by the fingerprint of what it computes.

    <checkpoints>/<fingerprint>/last/       the newest checkpoints
    <checkpoints>/<fingerprint>/best/       the model that validation found best
    <checkpoints>/<fingerprint>/negatives/  the hard negatives of the newest epochs
    <checkpoints>/<fingerprint>/identity.json  what the fingerprint is of
    <tensorboard>/<fingerprint>/

A run that is killed leaves them, and the same run finds them again, wherever its model is
to be written.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from recsys.config import TrainStage
from recsys.data.store import MANIFEST
from recsys.errors import RecsysError
from recsys.fingerprint import code_fingerprint
from recsys.system.commit import commit_text
from recsys.system.held_folder import HeldFolder

_OTHERS = 2
_IDENTITY = "identity.json"


@dataclasses.dataclass(frozen=True)
class RunFolders:
    """The folders of one run.

    Attributes:
        identity: Fingerprints of what the run computes with.
        checkpoints: Its checkpoints.
        tensorboard: Its logs for TensorBoard; None: there are none.
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
        model: str | None = None,
    ) -> Self:
        """Returns the folders of a run.

        Args:
            root: Folder of the checkpoints of all runs.
            stage: The model and the training loop.
            data: Data folder of the InteractionEncoder.
            base: Fingerprint of the earlier model of a warm start; None for a cold start.
            tensorboard: Folder of the logs of all runs for TensorBoard; None: no logs.
            model: Fingerprint of the code of a model that isn't of this package.
        """
        parts = identity(stage, data, base) | ({} if model is None else {"model": model})
        name = folder_name(parts)
        return cls(parts, root / name, None if tensorboard is None else tensorboard / name)

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
    def negatives(self) -> Path:
        """Folder of the hard negatives."""
        return self.checkpoints / "negatives"

    @property
    def profile(self) -> Path:
        """Folder of the trace of JAX's profiler, where TensorBoard finds it."""
        return self.tensorboard or self.checkpoints / "profile"

    def newest_other(self) -> tuple[Path, list[str]] | None:
        """Returns the folder of the run that was written last, and what differs from it.

        None if there is no other run, or none with an identity.
        """
        for path in self._others():
            try:
                other = json.loads((path / _IDENTITY).read_text())
            except (OSError, ValueError):
                continue
            parts = dict.fromkeys([*self.identity, *other])
            return path, [part for part in parts if other.get(part) != self.identity.get(part)]
        return None

    def remove_others(self) -> list[Path]:
        """Removes the checkpoints of other runs but the two that were written last.

        A checkpoint is as large as tables and slots together, and each night's data make
        another run. Those that are left out are still there for a run that was killed.

        Returns:
            The folders that were removed.
        """
        removed = []
        for path in self._others()[_OTHERS:]:
            with suppress(RecsysError, OSError), _lock(path), HeldFolder(path.parent) as held:
                held.remove(path)
                removed.append(path)
        return removed

    def _others(self) -> list[Path]:
        """Returns the folders of other runs, the one that was written last first."""
        others = [
            path
            for path in self.checkpoints.parent.glob("[0-9a-f]" * 16)
            if path.name != self.checkpoints.name and not path.is_symlink()
        ]
        return sorted(others, key=_written, reverse=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from writing the same checkpoints while it is open.

        The kernel frees the lock when the process ends, however.

        Raises:
            RecsysError: Another run holds it (R380), or one of them is a link (R381).
        """
        self._check_no_link()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with _lock(self.checkpoints):
            commit_text(json.dumps(self.identity) + "\n", self.checkpoints / _IDENTITY)
            yield

    def _check_no_link(self) -> None:
        """Refuses a link: removing checkpoints must not delete files behind it."""
        for folder in (self.checkpoints, self.last, self.best, self.negatives):
            if folder.is_symlink():
                raise RecsysError(
                    "R381",
                    "No folder of a training's checkpoints may be a link.",
                    "Look at what it leads to, and remove the link; to keep checkpoints"
                    " elsewhere, name that folder with --checkpoints.",
                    str(folder),
                )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecsysError(
                "R380",
                f"Only one training at a time can write the checkpoints in {str(folder)!r}.",
                "Wait until the other one ends, or stop it; or name another folder with"
                " --checkpoints.",
                "a lock that another process holds",
            ) from None
        yield


def _written(folder: Path) -> float:
    """Returns when the newest checkpoint of a run was written [seconds since 1970]."""
    return max(path.stat().st_mtime for path in [folder, *folder.glob("last/*")])


_PARTS = ("vocabulary", "catalogue", "user_features")
_CHANGES_NOTHING = ("checkpoint", "profile_steps")


def identity(stage: TrainStage, data: Path, base: str | None = None) -> dict[str, str]:
    """Returns the fingerprints of `config`, `data` and `code`, each a sha256 in hex.

    That of the `base` is among them where a training goes on from an earlier model.

    Two runs with the same ones compute the same, so one may go on from the other's
    checkpoint. How often checkpoints are written, for example, is no part of them.

    Args:
        stage: The model and the training loop.
        data: Data folder of the InteractionEncoder.
        base: Fingerprint of the model that it goes on from; None: it begins anew.

    Raises:
        RecsysError: A file of the data can't be read.
    """
    described = stage.model_dump(mode="json")
    for key in _CHANGES_NOTHING:
        del described["train"][key]
    # Devices compute the same, however they are arranged.
    del described["mesh"], described["layout"]
    # Of no consequence to a training that begins anew.
    warm_start = described.pop("warm_start")
    more = {} if base is None else {"base": base}
    if base is not None:
        described["warm_start"] = warm_start
    config = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    code = code_fingerprint("recsys.train", config=[stage])
    return {"config": config, "data": _data_fingerprint(data), "code": code, **more}


def folder_name(parts: dict[str, str]) -> str:
    """Returns the name of the folder that the checkpoints of a run lie in."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _data_fingerprint(data: Path) -> str:
    """Returns one text for one content of a data folder.

    The store's manifest names the sha256 of each of its files.
    """
    files = [data / "store" / MANIFEST]
    for part in _PARTS:
        files += [file for file in (data / part).rglob("*") if file.is_file()]
    digest = hashlib.sha256()
    try:
        for file in sorted(files):
            digest.update(file.relative_to(data).as_posix().encode() + b"\0")
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    except OSError as error:
        raise RecsysError(
            "R374",
            f"The files of the data folder {str(data)!r} must be readable.",
            "Name the folder that the InteractionEncoder wrote, or run again.",
            f"{error.filename}: {error.strerror}",
        ) from None
    return digest.hexdigest()
