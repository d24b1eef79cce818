"""Checks before the processes of several hosts start, so that they neither hang nor differ.

All hosts must run the same with the same code, see the same output folders, and have an address
that the others can reach. Each error names the host.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from recsys.config.file_option import BY_CONTENT
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint, source_version, version_text
from recsys.strict import Strict
from recsys.system.commit import commit_text
from recsys.system.disk import storage_error
from recsys.system.files import DAMAGE, read_json
from recsys.system.host_connections import is_loopback, plain_address

SEEN_WITHIN_S = 30.0
"""How long a file of one host may take until another one sees it [s]: caches of NFS."""
_MANIFEST_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Member:
    """A participant: a host, or a process that a scheduler started.

    Attributes:
        index: Which one, from 0.
        kind: `host`, or `process` where each process comes by itself.
        name: Name of its machine.
        address: Its address as it sees it itself.
        facts: What it would train or measure; see `facts_of`.
    """

    index: int
    kind: Literal["host", "process"]
    name: str
    address: str
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.index} ({self.name!r}, {self.address})"


# --- the same run


def facts_of(module: str, stage: Strict, folders: Mapping[str, Path | None]) -> dict[str, Any]:
    """Returns the facts on which all hosts must agree, by name, JSON-serializable.

    Args:
        module: What runs, such as `recsys.train`.
        stage: Its config.
        folders: What it reads, by name; None: nothing of that name.
    """
    source = version_text(source_version())
    code = code_fingerprint(stage)[:16]
    read = {name: _digest_of(path) for name, path in folders.items() if path is not None}
    config = dict(_leaves("config", stage.model_dump(mode="json", context=BY_CONTENT)))
    return {"the code": f"{source} ({code})", **read, **config}


def digest_of(facts: Mapping[str, Any]) -> str:
    """Returns a digest that identifies a run, independent of hosts, devices and code."""
    ignored = (
        "the number of",
        "the code",
        "config.mesh",
        "config.layout",
        "config.train.checkpoint",
    )
    same = {name: value for name, value in facts.items() if not name.startswith(ignored)}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(f"{path}.{name}", part)
    else:
        yield path, value


def _digest_of(folder: Path) -> str:
    """Returns one text for names and sizes of a folder's files and for its short JSON files.

    Among these are manifests with the digests of large files, which are not read here.
    """
    digest = hashlib.sha256()
    try:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            size = file.stat().st_size
            digest.update(f"{file.relative_to(folder).as_posix()}\0{size}\0".encode())
            if file.suffix == ".json" and size <= _MANIFEST_BYTES:
                digest.update(file.read_bytes())
    except OSError as error:
        raise storage_error(error, folder) from None
    return digest.hexdigest()[:16]


def check_same(ours: Member, theirs: Member) -> None:
    """Checks that two hosts would train, or evaluate, the same.

    Raises:
        UsageError: They wouldn't.
    """
    names = {**ours.facts, **theirs.facts}
    different = [name for name in names if ours.facts.get(name) != theirs.facts.get(name)]
    if different:
        shown = " and ".join(different[:3])
        if len(different) > 3:
            shown = f"{', '.join(different[:3])} and {len(different) - 3} more"
        first = different[0]
        raise UsageError(
            "R387",
            "All hosts of a run must have the same code, config and data;"
            f" {theirs} differs from {ours} in {shown}.",
            "Give all of them the same installation, config, options and data folder.",
            {theirs.index: theirs.facts.get(first), ours.index: ours.facts.get(first)},
        )


def check_numbers(n_members: int, known: Sequence[Member], coming: Member) -> None:
    """Checks that a member is expected, and that its number is not taken.

    Raises:
        UsageError: It isn't, or another one is.
    """
    cure = "Count from 0, each number once, with the same list or number of them everywhere."
    if not 0 < coming.index < n_members:
        rule = f"A {coming.kind} must be one of {n_members}, numbered from 0; {coming} isn't."
        raise UsageError("R376", rule, cure, coming.index)
    for member in known:
        if member.index == coming.index:
            rule = f"Each {coming.kind} must have a number of its own; {member} and {coming} don't."
            raise UsageError("R376", rule, cure, coming.index)


# --- the folders that are written


class SharedFolders:
    """The folders that all hosts of a run must share, and the check that they do.

    Args:
        folder: One of its own, for a training among the checkpoints; created if missing.
        models: The one in which the model folder, or `evaluation.json`, is to be; likewise.

    Raises:
        RecsysError: One of them can't be made.
    """

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.models = folder, models
        for path in (folder, models):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise storage_error(error, path) from None

    def begin(self, hosts: Sequence[str]) -> tuple[int, str]:
        """Writes, on the first host, the file that the others are to see.

        Returns:
            The epoch: how often hosts have met for this training; and a token.
        """
        path = self.folder / "epoch.json"
        try:
            epoch = int(read_json(path)["epoch"]) + 1
        except DAMAGE:
            epoch = 1
        token = uuid.uuid4().hex
        self._write(self._mark(token), {"token": token})
        self._write(path, {"epoch": epoch, "token": token, "hosts": list(hosts)})
        return epoch, token

    def clear(self, token: str) -> None:
        """Removes, on the first host, the files that the others have seen and no longer need."""
        with suppress(OSError):
            self._mark(token).unlink()

    def _mark(self, token: str) -> Path:
        return self.models / f".recsys-hosts-{token}"

    def answer(self, index: int, token: str) -> None:
        """Writes, on another host, the file that the first one is to see."""
        self._write(self.folder / f"host-{index}.json", {"token": token})

    def sees_first(self, token: str) -> bool:
        """Returns, on another host, whether it sees the first one's files."""
        files = (self.folder / "epoch.json", self._mark(token))
        return all(self._sees(file, token) for file in files)

    def sees_answer(self, index: int, token: str) -> bool:
        """Returns, on the first host, whether it sees the file of another one."""
        return self._sees(self.folder / f"host-{index}.json", token)

    def _write(self, path: Path, fields: Mapping[str, Any]) -> None:
        try:
            commit_text(json.dumps(fields) + "\n", path)
        except OSError as error:
            raise storage_error(error, path) from None

    def _sees(self, path: Path, token: str) -> bool:
        try:
            # Listing a folder makes NFS ask for names that it knew not to be there.
            list(path.parent.iterdir())
            return bool(read_json(path).get("token") == token)
        except DAMAGE:
            return False


def not_shared(member: Member, folders: SharedFolders) -> RecsysError:
    """Returns the error of a host that sees other folders of checkpoints or results."""
    return UsageError(
        "R386",
        "All hosts must reach the same folders of checkpoints and results; what the first"
        f" one writes there, {member} doesn't see within {SEEN_WITHIN_S:.0f} s, or the other way"
        " round.",
        "Name folders on a file system that all of them mount, with --checkpoints and --out.",
        [str(folders.folder.parent), str(folders.models)],
    )


# --- the address


def address_to_publish(address: str | None) -> str | None:
    """Returns the address that this host's processes must publish, if the default is unusable.

    By default gloo, which connects JAX's CPUs, publishes the first address of the machine's own
    name that it can bind.

    Args:
        address: At which other machines reach this one; None: all processes are on this one.

    Returns:
        An address; None: gloo finds one that will do.
    """
    own = _address_of_name()
    if own is None or (address is not None and is_loopback(own)):
        return address or "127.0.0.1"
    return None


def _address_of_name() -> str | None:
    try:
        resolved = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in resolved:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return plain_address(str(address[0]))
    return None


def check_address(member: Member) -> None:
    """Checks that hosts on other machines can reach a host's address.

    Raises:
        UsageError: It is a loopback address.
    """
    if is_loopback(member.address):
        raise UsageError(
            "R385",
            "The hosts of a run must find each other by addresses of the network;"
            f" {member} has a loopback address.",
            "Name the first host by an address, or a name that no /etc/hosts turns into 127.0.0.1.",
            member.address,
        )
