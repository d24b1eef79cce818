"""Joins the processes of a run through `jax.distributed`, and checks that they agree.

All must run the same config with the same code, share the output folders, and have an address
that the others can reach. Each error names the process at fault, and every process ends with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import json
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from recsys.distributed.coordination import (
    HEARTBEAT_S,
    calling_after,
    detected,
    end_process,
    exchange,
    jointly,
    listen,
    publish,
)
from recsys.distributed.place import Place
from recsys.errors import RecsysError, UsageError
from recsys.fingerprint import code_fingerprint, source_version, version_text
from recsys.registry.file_option import BY_CONTENT
from recsys.strict import Strict
from recsys.system.events import note
from recsys.system.files import storage_error

_LEAVE_S = 300
_TRY_S = 2.0


def join(facts: Callable[[], Mapping[str, Any]] = dict, folders: Sequence[Path] = ()) -> bool:
    """Joins the other processes of the run, if a parent gave this one a place among them.

    Args:
        facts: Returns values that must be equal on all processes, by name, JSON-serializable.
        folders: Folders that all must share; created if missing.

    Returns:
        Whether a parent gave this process a place, even if it is the only one.

    Raises:
        RecsysError: The processes do not connect before the timeout, or differ.
    """
    place = Place.of_environment()
    if place is None:
        return False
    if place.coordinator == "auto":
        place = detected(place)
    host, port = place.address
    if place.process == 0:
        _wait_for_port(port, place.wait_s)
    with calling_after(place.wait_s, lambda: end_process(_not_met(place))):
        jax.distributed.initialize(
            place.coordinator,
            place.n_processes,
            place.process,
            [int(device) for device in place.devices.split(",")] if place.devices else None,
            cluster_detection_method="deactivate",
            # Longer than `wait_s`, since this timeout aborts the process.
            initialization_timeout=math.ceil(place.wait_s) + 60,
            heartbeat_timeout_seconds=HEARTBEAT_S,
            shutdown_timeout_seconds=_LEAVE_S,
            coordinator_bind_address=place.coordinator if is_loopback(host) else None,  # None: all
        )
    if place.is_local:
        address = "127.0.0.1"
    else:
        listen()
        address = agree(place, facts(), folders)
    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        publish(address)
    return True


def _wait_for_port(port: int, wait_s: float) -> None:
    """Waits until the port of the coordination service is free; otherwise the service crashes.

    Raises:
        UsageError: Another program keeps the port (R383).
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            with socket.create_server(("", port)):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    "R383",
                    f"The first process must be able to listen on port {port}.",
                    "End the program that listens there, or name another port everywhere.",
                    error.strerror or str(error),
                ) from None
        time.sleep(0.5)


def _not_met(place: Place) -> RecsysError:
    """Returns the error for processes that did not connect before the timeout."""
    who = f"process {place.process} ({socket.gethostname()!r})"
    try:
        if place.process:
            socket.create_connection(place.address, _TRY_S).close()
    except OSError as error:
        is_unknown = isinstance(error, socket.gaierror)
        return RecsysError(
            "R383",
            f"The first process, {place.coordinator}, must be reachable from {who} within"
            f" {place.wait_s:.0f} s.",
            "Check whether the name is right, the command was started there, and no firewall is"
            " between.",
            "its name isn't known here" if is_unknown else error.strerror or str(error),
        )
    return RecsysError(
        "R384",
        f"All {place.n_processes} processes must come to {place.coordinator} within"
        f" {place.wait_s:.0f} s; {who} has waited for the others in vain.",
        "Check their logs; to continue with fewer, give a smaller --num-processes everywhere.",
    )


SEEN_WITHIN_S = 30.0
"""Timeout for a file of one process to appear on the others [s]; NFS caches folders."""
_MANIFEST_BYTES = 1 << 20
_MACHINE = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net"))


@dataclasses.dataclass(frozen=True)
class Member:
    """A process as the others see it.

    Attributes:
        process: Index of the process.
        name: Name of its machine.
        machine: Id of its machine's network.
        address: Address of its machine on the route to process 0.
        token: Random text.
        facts: Digests of its config, code and data; see `facts_of`.
    """

    process: int
    name: str
    machine: str
    address: str
    token: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return f"process {self.process} ({self.name!r}, {self.address})"


def agree(place: Place, facts: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """Checks that all processes agree; returns the address at which others reach this one.

    Args:
        place: Place of this process among the others.
        facts: Values that must be equal on all processes, by name, JSON-serializable.
        folders: Folders that all must share; created if missing.

    Raises:
        UsageError: The processes differ (R387), see other folders (R386), or have an address
            that others cannot reach (R385). All processes raise the same error.
    """
    boot, network = _MACHINE[0].read_text().strip(), _MACHINE[1].readlink()
    own = Member(
        place.process,
        socket.gethostname(),
        f"{boot} {network}",
        own_address(*place.address),
        uuid.uuid4().hex,
        {"the number of processes": place.n_processes, **facts},
    )
    members = [Member(**each) for each in exchange(dataclasses.asdict(own), place.wait_s)]
    if place.members:
        names = [str(member) for member in members]
        Path(place.members).write_text(json.dumps([str(own), *names]))
    check_same(members)
    address = _address(own, members)
    if folders:
        _check_folders(own, members, folders)
    if place.process == 0:
        note(f"All {len(members)} processes have met.")
    return address


# --- config, code and data


def facts_of(stage: Strict, folders: Mapping[str, Path | None]) -> dict[str, Any]:
    """Returns the values that must be equal on all processes, by name, JSON-serializable.

    Args:
        stage: The stage's part of the config.
        folders: Folders that the stage reads, by name; None for one that isn't given.
    """
    read = {name: _digest_of(path) for name, path in folders.items() if path is not None}
    source = version_text(source_version())
    config = dict(_leaves("config", stage.model_dump(mode="json", context=BY_CONTENT)))
    return {"the code": f"{source} ({code_fingerprint(stage)[:16]})", **read, **config}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(f"{path}.{name}", part)
    else:
        yield path, value


def _digest_of(folder: Path) -> str:
    """Returns a digest of the names and sizes of a folder's files and of its short JSON files.

    These include manifests, which hold the digests of large files; the files aren't read.
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


def check_same(members: Sequence[Member]) -> None:
    """Checks that all processes would train or evaluate the same.

    Raises:
        UsageError: A process differs from the first (R387).
    """
    first = members[0]
    for member in members[1:]:
        names = {**first.facts, **member.facts}
        different = [name for name in names if first.facts.get(name) != member.facts.get(name)]
        if different:
            more = f" and {len(different) - 3} more" if len(different) > 3 else ""
            name = different[0]
            raise UsageError(
                "R387",
                "All processes of a run must have the same code, config and data;"
                f" {member} differs from {first} in {', '.join(different[:3])}{more}.",
                "Give all of them the same installation, config, options and data folder.",
                {member.process: member.facts.get(name), 0: first.facts.get(name)},
            )


# --- the output folders


def _check_folders(own: Member, members: Sequence[Member], folders: Sequence[Path]) -> None:
    """Checks that all processes share the folders: each writes a file and waits for the others."""
    marks = [f".recsys-{members[0].token}-{member.process}" for member in members]
    files = [folder / marks[own.process] for folder in folders]
    try:
        jointly(lambda: _write(files))
        unseen = jointly(lambda: _unseen(marks, folders))
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    for member, missing in zip(members, unseen, strict=True):
        if missing:
            raise UsageError(
                "R386",
                "All processes of a run must reach the same folders of checkpoints and results;"
                f" what {members[missing[0]]} writes there, {member} does not see within"
                f" {SEEN_WITHIN_S:.0f} s.",
                "Name folders on a file system that all of them mount, with --checkpoints and"
                " --out.",
                [str(folder) for folder in folders],
            )


def _write(files: Sequence[Path]) -> None:
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError as error:
            raise storage_error(error, file.parent) from None


def _unseen(marks: Sequence[str], folders: Sequence[Path]) -> list[int]:
    """Returns the processes whose files do not appear in the folders before the timeout."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while True:
        seen = set.intersection(*({path.name for path in folder.iterdir()} for folder in folders))
        missing = [process for process, mark in enumerate(marks) if mark not in seen]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.1)


# --- the addresses


def own_address(host: str, port: int) -> str:
    """Returns the address of this machine on the route to a host."""
    with suppress(OSError):
        family, kind, protocol, _, remote = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(remote)  # Sends nothing.
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address always refers to the local machine.

    Names other than `localhost` don't count: a machine's own name may resolve to a loopback
    address on this machine only.
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _address(own: Member, members: Sequence[Member]) -> str:
    """Returns the address at which the other processes reach this one.

    Raises:
        UsageError: A process on another machine than process 0 has a loopback address (R385).
    """
    remote = [member for member in members if member.machine != members[0].machine]
    for member in remote:
        if is_loopback(member.address):
            raise UsageError(
                "R385",
                "The processes of a run must find each other by addresses of the network;"
                f" {member} has a loopback address.",
                "Name the first process by an address, or a name that no /etc/hosts turns into"
                " 127.0.0.1.",
                member.address,
            )
    if not remote:
        return "127.0.0.1"
    return own_address(remote[0].address, 1) if own not in remote else own.address
