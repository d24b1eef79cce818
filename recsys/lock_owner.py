"""Who holds the lock of a root, as a file says it, and whether that process still lives."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any, Self

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
    """A process that holds a lock, so named that no other is taken for it.

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
            given: dict[str, Any] = {name: fields[name] for name in known if name in fields}
            owner = cls(**given)
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
