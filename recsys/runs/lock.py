"""One run at a time on one root, on one machine or on several that share its folder.

flock decides wherever it reaches: the kernel frees it with the process. On a file system
that machines share it may not reach, or not be there; so the holder also writes who it is
into the file, and touches it every few seconds. A lock whose holder has been silent for
`SILENT_S` is taken over, and the holder, should it come back, finds out and stops.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any, Self
import _thread
import errno
import fcntl
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from recsys.errors import BusyError, RecsysError
from recsys.system.process import storage_error

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")
_MOUNTS = Path("/proc/self/mountinfo")
_LOCAL = (
    *("bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "ntfs3"),
    *("overlay", "ramfs", "reiserfs", "tmpfs", "udf", "ufs", "vfat", "xfs", "zfs"),
)
"""File systems of one kernel, where flock reaches whoever can see the file."""


@dataclasses.dataclass(frozen=True)
class Owner:
    """Identity of a process that holds a lock, distinct from all other processes.

    Containers have equal pids and may have equal host names, and pids come again: so the
    kernel's boot, the namespace of the pid and the moment of the process's start belong
    to its name. What a system doesn't tell is empty, or 0.

    Attributes:
        pid: Its number.
        host: Name of its machine, for people.
        started: When it took the lock [seconds since 1970].
        boot: Id of the kernel's boot.
        pids: Id of the namespace that the pid counts in.
        born: When the process started [ticks since the boot].
        token: Of this one time that the lock is held.
    """

    pid: int
    host: str
    started: float
    boot: str = ""
    pids: str = ""
    born: int = 0
    token: str = ""

    @classmethod
    def this(cls) -> Self:
        """Returns this process, as it takes a lock now."""
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            started=time.time(),
            boot=_boot(),
            pids=_pids(),
            born=_born(os.getpid()) or 0,
            token=uuid.uuid4().hex,
        )

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """Returns the owner that `to_json` described; None where there is none, or damage.

        Older versions wrote `pid`, `host` and `started` alone.
        """
        try:
            fields = json.loads(text)
            known = [field.name for field in dataclasses.fields(cls)]
            values: dict[str, Any] = {name: fields[name] for name in known if name in fields}
            owner = cls(**values)
            # Whether they are what they should be shows where they are used.
            owner.described()
        except (ValueError, TypeError):
            return None
        return owner if type(fields["pid"]) is int else None

    def to_json(self) -> str:
        """Returns what a lock's file holds."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    def lives(self) -> bool | None:
        """Returns whether the process lives; None where that can't be seen from here."""
        if not self.boot or not self.pids or (self.boot, self.pids) != (_boot(), _pids()):
            return None
        born = _born(self.pid)
        if born is not None:
            return born == self.born
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return None  # There is one, of whom the system tells no more.

    def described(self) -> str:
        """Returns who that is and for how long, for people."""
        return f"process {self.pid} on {self.host}, for {duration(time.time() - self.started)}"


def duration(seconds: float) -> str:
    """Returns a time in the largest unit that gives it two digits or more."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def is_local(folder: Path) -> bool:
    """Returns whether `folder` lies on a file system of this kernel alone.

    What isn't known to be local counts as shared: NFS, SMB, FUSE, 9p, Lustre, and
    whatever comes.
    """
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return True  # No Linux: flock must do.
    best, kind = "", ""
    path = str(folder.resolve())
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # The last one mounted there is what is seen.
            best, kind = point, after.split()[0]
    return kind in _LOCAL


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _pids() -> str:
    try:
        return str(_PIDS.readlink())
    except OSError:
        return ""


def _born(pid: int) -> int | None:
    """Returns when a living process started [ticks since the boot]; None if that isn't told."""
    try:
        # The command's name, in brackets, may hold anything; what follows doesn't.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return -1 if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None



# --- the lock

LOCK_NAME = "run.lock"
SILENT_S = 120.0
"""A holder on another machine that gave no sign of life for so long is dead [s]."""
_BEAT_S = 10.0
_SETTLE_S = 2.0
"""Of two that write their names at once the later one has the lock; so long it may take [s]."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class RunLock:
    """A lock that this process holds.

    Attributes:
        taken_over: Who held it before and never gave it back; None for nobody.
    """

    def __init__(self, path: Path, owner: Owner, taken_over: Owner | None) -> None:
        self.taken_over = taken_over
        self._path, self._owner = path, owner
        self._is_over = threading.Event()
        self._lost: RecsysError | None = None
        self._thread = threading.Thread(target=self._beat, name="run lock", daemon=True)

    def check(self) -> None:
        """Makes sure that the lock is still held.

        Raises:
            RecsysError: Another run took it over (R604).
        """
        if self._lost is None:
            self._look()
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Touches the lock while it is open, and releases it at the end."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()
            with suppress(OSError):
                if _read(self._path) == self._owner:
                    os.truncate(self._path, 0)

    def _beat(self) -> None:
        while not self._is_over.wait(_BEAT_S):
            with suppress(OSError):  # A file server may be away for a while.
                os.utime(self._path)
            self._look()
            if self._lost is not None:
                # As if somebody had asked the run to stop.
                _thread.interrupt_main(signal.SIGTERM)
                return

    def _look(self) -> None:
        try:
            holder = _read(self._path)
        except FileNotFoundError:
            holder = None
        except OSError:
            return
        if holder != self._owner:
            self._lost = _lost(self._path.parent, holder)


@contextmanager
def run_lock(root: Path) -> Iterator[RunLock]:
    """Holds the lock of `root` while it is open.

    Args:
        root: Folder of everything that a run writes; made where there is none.

    Raises:
        BusyError: Another run holds it (R601).
        RecsysError: The folder can't be written (R602), or is full (R603).
    """
    descriptor = _open(root)
    try:
        path = root / LOCK_NAME
        shared = not _flocked(descriptor, root) or not is_local(root)
        before = _read(path)
        if shared and before is not None and not _is_dead(before, root):
            raise _busy(root, before)
        lock = RunLock(path, _signed(descriptor, path, shared=shared), before)
        with lock.kept():
            yield lock
    finally:
        os.close(descriptor)


def refuse_if_held(root: Path) -> None:
    """Raises early, before the slow imports of a run, if the lock's holder is alive.

    Raises:
        BusyError: Another run holds it (R601).
    """
    try:
        owner = _read(root / LOCK_NAME)
    except OSError:
        return
    if owner is not None and owner.pid != os.getpid() and owner.lives():
        raise _busy(root, owner)


def _open(root: Path) -> int:
    try:
        root.mkdir(parents=True, exist_ok=True)
        for folder in (root, root / "artifacts", root / "serving"):
            if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied", str(folder))
        # Not inheritable: a stage that outlives its parent would hold the lock.
        return os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_error(error) from None
        raise RecsysError(
            "R602",
            f"The folder {str(root)!r} must be writable, for everything that a run writes.",
            "Mend its permissions, or choose another folder with --set root=DIR.",
            error.strerror or str(error),
        ) from None


def _flocked(descriptor: int, root: Path) -> bool:
    """Locks the file; returns False where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(root, _read(root / LOCK_NAME)) from None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise storage_error(error) from None
    return True


def _is_dead(owner: Owner, root: Path) -> bool:
    """Returns whether the holder of a lock on a shared file system is dead."""
    if not owner.boot:
        return True  # Of an older version, which never took its name back.
    lives = owner.lives()
    return _silence(root) > SILENT_S if lives is None else not lives


def _silence(root: Path) -> float:
    """Returns how long ago the lock's file was touched, by the file server's clock [s]."""
    probe, now = root / f".{LOCK_NAME}.{uuid.uuid4().hex}", time.time()
    with suppress(OSError):
        probe.touch(exist_ok=False)
        now = probe.stat().st_mtime
        probe.unlink()
    try:
        return now - (root / LOCK_NAME).stat().st_mtime
    except OSError:
        return 0.0


def _signed(descriptor: int, path: Path, *, shared: bool) -> Owner:
    """Writes this process into the file; where others may do so too, the last one has it."""
    owner = Owner.this()
    content = owner.to_json().encode()
    try:
        os.pwrite(descriptor, content, 0)  # No moment at which it is nobody's.
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    except OSError as error:
        raise storage_error(OSError(error.errno, error.strerror, str(path))) from None
    if shared:
        time.sleep(_SETTLE_S)
        holder = _read(path)
        if holder != owner:
            raise _busy(path.parent, holder)
    return owner


def _read(path: Path) -> Owner | None:
    return Owner.parsed(path.read_text(encoding="utf-8", errors="replace"))


def _busy(root: Path, owner: Owner | None) -> BusyError:
    who = "another process, just started"
    if owner is not None:
        seen = f", last sign of life {duration(_silence(root))} ago" if owner.boot else ""
        who = f"{owner.described()}{seen}"
    return BusyError(
        "R601",
        f"Only one run at a time may use {str(root)!r}, and one does: {who}.",
        "Wait for it, end it, or choose another folder with --set root=DIR.",
    )


def _lost(root: Path, owner: Owner | None) -> RecsysError:
    return RecsysError(
        "R604",
        f"The lock of {str(root)!r} must stay with the run that holds it.",
        "The run was silent for too long, as a suspended machine is, and another one took over:"
        " leave the root to it. Nothing that is served was touched.",
        "no owner" if owner is None else owner.described(),
    )


