"""Connections between the parents of a training's hosts: JSON, a line a message, over TCP.

Nothing here blocks. Each side sends a heartbeat every second. If a side is killed, its kernel
closes the connection at once; if its link is cut, its heartbeats stop.
"""

from __future__ import annotations

import ipaddress
import json
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

_PING_S = 1.0
_GREETING_S = 10.0
_MOST_STRANGERS = 128
_LONGEST = 1 << 20


class Connection:
    """A connection to another host, which never blocks.

    Args:
        connected: The connected socket.

    Attributes:
        is_closed: Whether it has ended, by either side.
        is_local: Whether the other side is a process of this machine.
        own_address: This machine's address there.
        address: The other one's.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received, self._to_send = b"", b""
        self._heard = self._pinged = self._since = time.monotonic()
        self.is_closed = False
        self.own_address = plain_address(connected.getsockname()[0])
        self.address = plain_address(connected.getpeername()[0])
        self.is_local = is_loopback(self.address) or self.address == self.own_address
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Returns the descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard [s]."""
        return time.monotonic() - self._heard

    @property
    def age_s(self) -> float:
        """For how long it is open [s]."""
        return time.monotonic() - self._since

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message, now or as soon as the other side takes it."""
        self._to_send += json.dumps({"kind": kind, **fields}).encode() + b"\n"
        self._flush()

    def messages(self) -> list[dict[str, Any]]:
        """Returns the messages that arrived since the last call, and sends a heartbeat.

        What is no message, or too long for one, closes the connection.
        """
        if not self.is_closed and time.monotonic() - self._pinged >= _PING_S:
            self._pinged = time.monotonic()
            self.send("ping")
        self._flush()
        self._receive()
        *lines, self._received = self._received.split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
            if all(isinstance(message, dict) for message in messages):
                return [message for message in messages if message.get("kind") != "ping"]
        except (ValueError, RecursionError):
            pass
        self.close()
        return []

    def close(self) -> None:
        """Closes the connection, after sending what is pending if that doesn't block."""
        self._flush()
        self.is_closed = True
        self._socket.close()

    def _receive(self) -> None:
        while not self.is_closed:
            try:
                part = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            self._received += part
            if not part or len(self._received) > _LONGEST:
                self.is_closed = True
                self._socket.close()
                return
            self._heard = time.monotonic()

    def _flush(self) -> None:
        while self._to_send and not self.is_closed:
            try:
                sent = self._socket.send(self._to_send)
            except BlockingIOError:
                return
            except OSError:  # What the other side sent before is still to be read.
                self._to_send = b""
                return
            self._to_send = self._to_send[sent:]


class Listener:
    """Takes the connections of the other hosts.

    Args:
        port: Where it listens.
        address: At which address; None: at all of this machine.

    Raises:
        OSError: Another program listens there.
    """

    def __init__(self, port: int, address: str | None = None) -> None:
        if address is not None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._socket = socket.create_server((address, port), family=family, backlog=1024)
        elif socket.has_dualstack_ipv6():
            self._socket = socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        else:
            self._socket = socket.create_server(("", port), backlog=1024)
        self._socket.setblocking(False)
        self._strangers: list[Connection] = []

    def fileno(self) -> int:
        """Returns the descriptor, for `select`."""
        return self._socket.fileno()

    def greeted(
        self, is_greeting: Callable[[Mapping[str, Any]], bool]
    ) -> list[tuple[Connection, dict[str, Any]]]:
        """Returns the connections whose greeting arrived since the last call, with that greeting.

        What says something else, or nothing for seconds, is closed; so is who waits longest
        where many say nothing.

        Args:
            is_greeting: Whether a message is one.
        """
        with suppress(OSError):
            for _ in range(_MOST_STRANGERS):
                self._strangers.append(Connection(self._socket.accept()[0]))
        greetings = []
        for connection in [*self._strangers]:
            messages = connection.messages()
            if messages and is_greeting(messages[0]):
                greetings.append((connection, messages[0]))
            elif messages or connection.age_s > _GREETING_S:
                connection.close()
            elif not connection.is_closed:
                continue
            self._strangers.remove(connection)
        for connection in self._strangers[:-_MOST_STRANGERS]:
            connection.close()
        self._strangers = self._strangers[-_MOST_STRANGERS:]
        return greetings

    def close(self) -> None:
        """Stops listening."""
        for connection in self._strangers:
            connection.close()
        self._socket.close()


def wait_for(sources: Iterable[Connection | Listener], seconds: float) -> None:
    """Waits until a connection or a listener has something to read, or for so long [s]."""
    poll = select.poll()
    for source in sources:
        if source.fileno() >= 0:
            poll.register(source, select.POLLIN)
    poll.poll(seconds * 1000)


def plain_address(text: str) -> str:
    """Returns an address without scope, and an IPv4 address as itself, not within IPv6."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(address: str) -> bool:
    """Returns whether only this machine reaches an address."""
    return ipaddress.ip_address(address).is_loopback


def loopback_in(host: str) -> str | None:
    """Returns the address that `host` is, if only this machine reaches it.

    Another name may mean a loopback address here and none elsewhere, as a machine's own does.
    """
    if host == "localhost":
        return "127.0.0.1"
    with suppress(ValueError):
        return host if is_loopback(host) else None
    return None
