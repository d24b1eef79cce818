"""One run at a time on one root, on one machine or on several that share its folder.

`flock` decides if it works: the kernel releases it with the process. On a shared file system it may
not reach other machines, or be missing. So the holder also writes its identity into the file, and
touches it every few seconds as a heartbeat. A lock without a heartbeat for `SILENT_S` is taken
over; its former holder, if it comes back, notices and stops.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from recsys.errors import BusyError, RecsysError
from recsys.formats import duration
from recsys.strict import Strict
from recsys.system.files import storage_error

LOCK_NAME = "run.lock"
SILENT_S = 120.0
"""Timeout of the heartbeat of a holder on another machine [s]."""
BEAT_S = 10.0
"""Time between two heartbeats [s]."""
_SETTLE_S = 2.0
"""Time until two simultaneous writers agree on the holder, the later one [s]."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_MOUNTS = Path("/proc/self/mounts")
_LOCAL = (
    *("bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "ntfs3"),
    *("overlay", "ramfs", "reiserfs", "tmpfs", "udf", "ufs", "vfat", "xfs", "zfs"),
)
"""Local file systems, on which flock reaches all processes."""


class Owner(Strict):
    """The process that holds a lock, distinct from all other processes.

    Containers may have equal pids and host names, and pids are reused, so a process is identified
    by the kernel's boot, the pid namespace and its start time too.
    """

    pid: int
    """Process id."""
    host: str
    """Host name, for display."""
    started: float
    """Time at which it took the lock [seconds since 1970]."""
    machine: str
    """Id of the kernel's boot and of the pid namespace."""
    born: int
    """Start of the process [ticks since the boot]."""
    token: str
    """Unique id of this acquisition."""

    @classmethod
    def this(cls) -> Self:
        """Returns the identity of this process, for a lock that it takes now."""
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            started=time.time(),
            machine=_machine(),
            born=_start_ticks(os.getpid()),
            token=uuid.uuid4().hex,
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Returns the owner in a lock's file; None if it is empty or damaged."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def is_alive(self) -> bool | None:
        """Returns whether the process is alive; None if it is on another machine."""
        return _start_ticks(self.pid) == self.born if self.machine == _machine() else None

    def described(self) -> str:
        """Returns a description of the owner and of how long it has held the lock."""
        return f"process {self.pid} on {self.host}, for {duration(time.time() - self.started)}"


class RunLock:
    """A lock that this process holds.

    Attributes:
        taken_over: The dead former holder, if there was one.
    """

    def __init__(self, path: Path, owner: Owner, taken_over: Owner | None) -> None:
        self.taken_over = taken_over
        self._path, self._owner = path, owner
        self._is_over = threading.Event()

    def check(self) -> None:
        """Checks that the lock is still held.

        Raises:
            RecsysError: Another run took it over (R604).
        """
        try:
            holder = Owner.read(self._path)
        except OSError:  # A file server may be unreachable for a while.
            return
        if holder != self._owner:
            raise taken_error(self._path.parent, holder)

    @contextmanager
    def kept(self) -> Iterator[Self]:
        """Sends heartbeats inside the block, and releases the lock at the end."""
        thread = threading.Thread(target=self._beat, name="run lock", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            thread.join()
            with suppress(OSError):
                if Owner.read(self._path) == self._owner:
                    os.truncate(self._path, 0)

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            with suppress(OSError):
                os.utime(self._path)
            try:
                self.check()
            except RecsysError:
                os.kill(os.getpid(), signal.SIGTERM)  # As a signal from outside.
                return


@contextmanager
def run_lock(root: Path) -> Iterator[RunLock]:
    """Holds the lock of `root` inside the block.

    Args:
        root: Output folder of a run; created if missing.

    Raises:
        BusyError: Another run holds it (R601).
        RecsysError: The folder can't be written (R602), or is full (R603).
    """
    path = root / LOCK_NAME
    descriptor = _open(root)
    try:
        is_shared = not _flocked(descriptor, root) or not is_local(root)
        before = Owner.read(path)
        if is_shared and before is not None and not _is_dead(before, root):
            raise _busy(root, before)
        owner = Owner.this()
        _sign(descriptor, path, owner)
        if is_shared:
            time.sleep(_SETTLE_S)
            if (holder := Owner.read(path)) != owner:
                raise _busy(root, holder)
        with RunLock(path, owner, before).kept() as lock:
            yield lock
    finally:
        os.close(descriptor)


def refuse_if_held(root: Path) -> None:
    """Raises before the slow imports of a run if the lock's holder is alive.

    Raises:
        BusyError: Another run holds it (R601).
    """
    with suppress(OSError):
        owner = Owner.read(root / LOCK_NAME)
        if owner is not None and owner.pid != os.getpid() and owner.is_alive():
            raise _busy(root, owner)


def is_local(folder: Path) -> bool:
    """Returns whether `folder` is on a local file system.

    Unknown file systems count as shared, such as NFS, SMB, FUSE, 9p and Lustre.
    """
    path, kinds = f"{folder.resolve()}/", {}
    for line in _MOUNTS.read_text().splitlines():
        _, escaped, kind, *_ = line.split()
        point = escaped.encode().decode("unicode_escape").rstrip("/") + "/"
        if path.startswith(point):
            kinds[point] = kind  # The last mount hides earlier ones.
    return kinds[max(kinds, key=len)] in _LOCAL


def _machine() -> str:
    return f"{_BOOT_ID.read_text().strip()} {_PID_NAMESPACE.readlink()}"


def _start_ticks(pid: int) -> int:
    """Returns the start of a live process [ticks since the boot]; -1 if there is none."""
    try:
        # Only the command's name, in brackets, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def _open(root: Path) -> int:
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Not inheritable, else a surviving stage would hold the lock.
        return os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_error(error) from None
        rule = f"The folder {str(root)!r} must be writable for the outputs of a run."
        cure = "Change its permissions, or choose another folder with --set root=DIR."
        raise RecsysError("R602", rule, cure, error.strerror or str(error)) from None


def _flocked(descriptor: int, root: Path) -> bool:
    """Locks the file; returns False if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(root, Owner.read(root / LOCK_NAME)) from None
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        raise storage_error(error) from None
    return True


def _sign(descriptor: int, path: Path, owner: Owner) -> None:
    content = f"{owner.model_dump_json()}\n".encode()
    try:
        os.pwrite(descriptor, content, 0)  # Atomic: the file is never empty.
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    except OSError as error:
        raise storage_error(error, path) from None


def _is_dead(owner: Owner, root: Path) -> bool:
    """Returns whether the holder of a lock on a shared file system is dead."""
    lives = owner.is_alive()
    return _heartbeat_age(root) > SILENT_S if lives is None else not lives


def _heartbeat_age(root: Path) -> float:
    """Returns the time since the last heartbeat [s]; clocks may differ by a minute."""
    return time.time() - (root / LOCK_NAME).stat().st_mtime


def _busy(root: Path, owner: Owner | None) -> BusyError:
    return busy_error(root, owner, 0.0 if owner is None else _heartbeat_age(root))


def taken_error(root: Path | str, holder: Owner | None) -> RecsysError:
    """Returns the error of a run whose lock was taken over (R604)."""
    return RecsysError(
        "R604",
        f"The lock of {str(root)!r} must stay with the run that holds it.",
        "The run did not renew the lock, as on a suspended machine, and another one"
        " took over. Let that one finish; the served model did not change.",
        "no owner" if holder is None else holder.described(),
    )


def busy_error(root: Path | str, owner: Owner | None, silent_s: float) -> BusyError:
    """Returns the error of a root that another process uses (R601)."""
    who = "another process, just started"
    if owner is not None:
        who = f"{owner.described()}, last sign of life {duration(silent_s)} ago"
    rule = f"Only one run at a time may use {str(root)!r}; it is in use by {who}."
    cure = "Wait for it, end it, or choose another folder with --set root=DIR."
    return BusyError("R601", rule, cure)
