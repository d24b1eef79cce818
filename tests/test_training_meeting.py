"""How the hosts of a training meet: what they agree on, and how one that is lost is named."""

import contextlib
import dataclasses
import json
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.errors import RecsysError, UsageError
from recsys.system.host_connections import Connection, Listener, is_loopback, plain_address
from recsys.training import follower, leader, preflight
from recsys.training.cluster import Cluster
from recsys.training.follower import Follower
from recsys.training.launcher import Attempts, free_port
from recsys.training.leader import Leader
from recsys.training.meeting import Failure
from recsys.training.preflight import (
    Member,
    SharedFolders,
    address_to_publish,
    check_address,
    digest_of,
)

FACTS = {"config.train.batch_size": 64, "the code": "1"}


def cluster(member, port, n=2, processes=1, wait_s=5.0):
    return Cluster("host", "127.0.0.1", port, n, member, processes, None, wait_s)


def shared(folder, models=None):
    return SharedFolders(folder, models or folder)


class Meeting:
    """A leader and followers in threads; what `meet` returned or raised, by number."""

    def __init__(self, folder, facts=None, folders=None, processes=(1, 1)):
        self.port, self.ended, self.parties = free_port(), {}, {}
        self._stack = contextlib.ExitStack()
        self._threads = []
        for member, n in enumerate(processes):
            place = (folders or {}).get(member, folder)
            own = {**FACTS, **(facts or {}).get(member, {})}
            self.come(member, cluster(member, self.port, len(processes), n), own, place)

    def come(self, member, place, facts, folder):
        kind = Follower if member else Leader
        party = self._stack.enter_context(kind(place, facts, shared(folder)))
        self.parties[member] = party
        thread = threading.Thread(target=self._meet, args=(member, party))
        thread.start()
        self._threads.append(thread)

    def _meet(self, member, party):
        try:
            self.ended[member] = party.meet()
        except RecsysError as error:
            self.ended[member] = error

    def __enter__(self):
        for thread in self._threads:
            thread.join(20)
        return self

    def __exit__(self, *error):
        self._stack.close()

    def end(self, member):
        """Polls one of them until it says how the attempt ended."""
        deadline = time.monotonic() + 20
        while (end := self.parties[member].poll()) is None:
            assert time.monotonic() < deadline
            for other, party in self.parties.items():
                if other and other != member:
                    party.poll()
        return end


def test_each_host_gets_its_own_processes_and_all_the_same_service(tmp_path):
    with Meeting(tmp_path, processes=(2, 1, 3)) as meeting:
        starts = [meeting.ended[member] for member in range(3)]
    assert [start.first for start in starts] == [0, 2, 3]
    assert {start.n_processes for start in starts} == {6}
    assert len({start.service for start in starts}) == 1
    assert {start.address for start in starts} == {None}  # All are on this machine.


def test_each_meeting_is_an_epoch_of_its_own(tmp_path):
    for epoch in (1, 2, 3):
        with Meeting(tmp_path):
            assert json.loads((tmp_path / "epoch.json").read_text())["epoch"] == epoch


def test_another_config_is_named_to_both(tmp_path):
    with Meeting(tmp_path, facts={1: {"config.train.batch_size": 128}}) as meeting:
        for error in meeting.ended.values():
            assert error.code == "R387"
            assert "host 1 (" in error.rule
            assert "in config.train.batch_size;" in f"{error.rule[:-1]};"
            assert error.received == "{1: 128, 0: 64}"


def test_other_code_is_named_to_both(tmp_path):
    with Meeting(tmp_path, facts={1: {"the code": "2"}}) as meeting:
        assert [error.code for error in meeting.ended.values()] == ["R387", "R387"]


def test_a_folder_that_is_not_shared_is_named_to_both(tmp_path, monkeypatch):
    for module in (leader, follower, preflight):
        monkeypatch.setattr(module, "SEEN_WITHIN_S", 0.5)
    with Meeting(tmp_path / "a", folders={1: tmp_path / "b"}) as meeting:
        for error in meeting.ended.values():
            assert error.code == "R386"
            assert "host 1 (" in error.rule


def test_a_model_folder_that_is_not_shared_is_named(tmp_path, monkeypatch):
    for module in (leader, follower, preflight):
        monkeypatch.setattr(module, "SEEN_WITHIN_S", 0.5)
    port = free_port()
    with (
        Leader(cluster(0, port), FACTS, shared(tmp_path, tmp_path / "a")) as first,
        Follower(cluster(1, port), FACTS, shared(tmp_path, tmp_path / "b")) as other,
    ):
        thread = threading.Thread(target=swallowed, args=(other.meet,))
        thread.start()
        with pytest.raises(UsageError, match=r"R386.*host 1 "):
            first.meet()
        thread.join(20)


def test_what_is_written_to_be_seen_is_removed(tmp_path):
    with Meeting(tmp_path):
        assert not list(tmp_path.glob(".*"))


def test_two_with_the_same_number_are_named(tmp_path):
    port = free_port()
    with Leader(cluster(0, port, 3), FACTS, shared(tmp_path)) as first:
        twins = [Follower(cluster(1, port, 3), FACTS, shared(tmp_path)) for _ in range(2)]
        threads = [threading.Thread(target=swallowed, args=(twin.meet,)) for twin in twins]
        for thread in threads:
            thread.start()
        with pytest.raises(UsageError, match=r"R376.*host 1 .*host 1"):
            first.meet()
        for thread, twin in zip(threads, twins, strict=True):
            thread.join(20)
            twin.__exit__()


def swallowed(meet):
    with contextlib.suppress(RecsysError):
        meet()


def test_nobody_to_come_to_is_one_sentence(tmp_path):
    port = free_port()
    with (
        Follower(cluster(1, port, wait_s=0.5), FACTS, shared(tmp_path)) as party,
        pytest.raises(RecsysError, match=f"R383.*127.0.0.1:{port}.*host 1"),
    ):
        party.meet()


def test_who_does_not_come_is_named(tmp_path):
    with (
        Leader(cluster(0, free_port(), 4, wait_s=0.3), FACTS, shared(tmp_path)) as party,
        pytest.raises(RecsysError, match=r"R384.*host 1, 2, 3 didn't"),
    ):
        party.meet()


def test_a_port_that_another_program_has_is_one_sentence(tmp_path):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"R383.*{port}"):
            Leader(cluster(0, port), FACTS, shared(tmp_path)).__enter__()


def test_a_second_group_of_hosts_for_the_same_training_is_refused(tmp_path):
    with (
        Leader(cluster(0, free_port()), FACTS, shared(tmp_path)),
        pytest.raises(RecsysError, match="R393"),
    ):
        Leader(cluster(0, free_port(), wait_s=0.1), FACTS, shared(tmp_path)).__enter__()


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"\xff\n", b"x" * 4096]
)
def test_who_talks_about_something_else_disturbs_nobody(noise, tmp_path):
    port = free_port()
    with (
        Leader(cluster(0, port), FACTS, shared(tmp_path)) as first,
        socket.create_connection(("127.0.0.1", port)) as stranger,
        Follower(cluster(1, port), FACTS, shared(tmp_path)) as party,
    ):
        stranger.sendall(noise)
        thread = threading.Thread(target=party.meet)
        thread.start()
        assert first.meet().n_processes == 2
        thread.join(20)


@pytest.fixture(name="brief")
def _brief(monkeypatch):
    """A leader that waits for the last words of nobody: here it shares a thread with them."""
    monkeypatch.setattr(leader, "LAST_WORDS_S", 0.2)
    monkeypatch.setattr(leader, "_FAREWELL_S", 0.2)


@pytest.mark.usefixtures("brief")
def test_a_follower_that_is_gone_is_named_to_the_others(tmp_path):
    with Meeting(tmp_path, processes=(1, 1, 1)) as meeting:
        meeting.parties.pop(2)._link.close()
        ends = {0: meeting.end(0), 1: meeting.parties[1].poll() or meeting.end(1)}
    for end in ends.values():
        assert end.again
        assert end.error.code == "R388"
        assert "host 2 (" in end.error.rule


def test_a_leader_that_is_gone_is_named(tmp_path):
    with Meeting(tmp_path) as meeting:
        meeting.parties[0].__exit__()
        end = meeting.end(1)
    assert end.again
    assert "host 0 (" in end.error.rule


def test_a_silent_host_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(leader, "SILENT_S", 1.5)
    with Meeting(tmp_path) as meeting:
        began = time.monotonic()
        end = meeting.parties[0].poll()
        while end is None:  # The follower doesn't poll, so it gives no sign of life.
            end = meeting.parties[0].poll()
        assert 1 < time.monotonic() - began < 10
    assert end.error.code == "R388"
    assert "no sign of life" in end.error.received


REASON = RecsysError("R322", "A rule.", "A cure.").to_json()


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("failures", "code", "text", "again"),
    [
        ({0: Failure(0, 1, None), 1: Failure(1, -9, None)}, "R388", "process 1 on host 1", True),
        ({0: Failure(0, 1, REASON), 1: Failure(1, -9, None)}, "R388", "process 1 on host 1", True),
        ({0: Failure(0, -6, None), 1: Failure(1, 1, REASON)}, "R322", "A rule.", False),
        ({0: Failure(0, -9, None), 1: Failure(1, -6, None)}, "R388", "process 0 on host 0", True),
        ({0: Failure(0, 1, None), 1: Failure(1, -6, None)}, "R388", "process 0 on host 0", True),
        ({0: Failure(0, -6, None)}, "R388", "; host 1 (", True),
    ],
    ids=["killed", "reason-from-its-death", "reason", "abort-from-its-death", "unknown", "still"],
)
def test_of_several_failures_the_cause_is_told(failures, code, text, again, tmp_path):
    with Meeting(tmp_path) as meeting:
        for member, failure in failures.items():
            meeting.parties[member].report_failed(failure)
        ends = [meeting.parties[0].poll(), None]
        while ends[0] is None:
            ends[0] = meeting.parties[0].poll()
            ends[1] = ends[1] or meeting.parties[1].poll()
    for end in [end for end in ends if end is not None]:
        assert (end.error.code, end.again) == (code, again)
        assert text in end.error.rule


@pytest.mark.usefixtures("brief")
def test_all_is_over_when_the_last_one_is_done(tmp_path):
    with Meeting(tmp_path) as meeting:
        meeting.parties[0].report_done()
        assert meeting.parties[0].poll() is None
        meeting.parties[1].report_done()
        assert meeting.end(0).error is None
        assert meeting.end(1).error is None


def test_attempts_that_save_nothing_three_times_end_a_run(tmp_path):
    attempts = Attempts(tmp_path)
    for step in ("20", None, None, "40", None, None):
        if step:
            (tmp_path / "run" / "last" / step).mkdir(parents=True)
        attempts.add("a link")
    with pytest.raises(RecsysError, match=r"R377.*'restarts': 7, 'last': 'a link'"):
        attempts.add("a link")


@given(st.lists(st.dictionaries(st.text(), st.integers()), max_size=8), st.integers(1, 50))
def test_messages_arrive_whole_in_whatever_parts_they_come(messages, size):
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        connection = Connection(server.accept()[0])
    text = "".join(json.dumps({"kind": "x", "fields": m}) + "\n" for m in messages).encode()
    received = []
    for at in range(0, len(text), size):
        sender.sendall(text[at : at + size])
        received += connection.messages()
    sender.close()
    while not connection.is_closed:
        received += connection.messages()
    assert [message["fields"] for message in received] == messages


def test_addresses_within_ipv6_and_with_scopes_are_plain():
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_address("fe80::1%eth0") == "fe80::1"
    assert is_loopback("127.0.1.1")
    assert is_loopback("::1")
    assert not is_loopback("10.0.0.1")


@pytest.mark.parametrize(
    ("name", "address", "expected"),
    [
        ("no-such-host.invalid", "10.0.0.2", "10.0.0.2"),
        ("no-such-host.invalid", None, "127.0.0.1"),
        ("localhost", "10.0.0.2", "10.0.0.2"),
        ("localhost", None, None),
        ("192.0.2.77", "10.0.0.2", "10.0.0.2"),  # Of another machine: it can't be bound here.
    ],
)
def test_gloo_is_told_an_address_where_its_own_choice_will_not_do(
    name, address, expected, monkeypatch
):
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert address_to_publish(address) == expected


def test_a_host_that_no_other_machine_reaches_is_named():
    check_address(Member(1, "host", "b", "10.0.0.2"))
    with pytest.raises(UsageError, match=r"R385.*host 1 \('b', 127.0.1.1\)"):
        check_address(Member(1, "host", "b", "127.0.1.1"))


def test_a_training_is_the_same_on_other_hosts_and_by_other_code():
    assert digest_of({**FACTS, "the code": "2"}) == digest_of(FACTS)
    assert digest_of({**FACTS, "config.mesh.data": 2}) == digest_of(FACTS)
    assert digest_of({**FACTS, "the number of hosts": 2}) == digest_of(FACTS)
    assert digest_of({**FACTS, "config.train.batch_size": 1}) != digest_of(FACTS)


# --- strangers


def test_a_host_comes_through_a_crowd_that_says_nothing_and_is_bounded():
    listener = Listener(port := free_port())
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
        host = socket.create_connection(("127.0.0.1", port))
        for link in (*crowd, host):
            stack.enter_context(link)
            link.setblocking(False)
        host.sendall(b'{"kind": "hello"}\n')
        deadline, greeted = time.monotonic() + 5, []
        while not greeted and time.monotonic() < deadline:
            greeted += listener.greeted(lambda message: message["kind"] == "hello")
        assert len(greeted) == 1
        stack.callback(greeted[0][0].close)
        # Those that came first were let go.
        closed = [is_closed(link) for link in crowd]
        assert closed == [True] * 172 + [False] * 128


def is_closed(link):
    try:
        while link.recv(1 << 12):
            pass
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "is_all"), [("127.0.0.1", False), ("localhost", False), ("", True)]
)
def test_a_leader_on_a_loopback_address_is_heard_there_alone(host, is_all, tmp_path):
    place = dataclasses.replace(cluster(0, free_port()), host=host or socket.gethostname())
    with Leader(place, FACTS, shared(tmp_path)):
        socket.create_connection(("127.0.0.1", place.port)).close()
        # All of 127.0.0.0/8 is this machine: who listens at all addresses is heard there too.
        refused = contextlib.nullcontext() if is_all else pytest.raises(ConnectionRefusedError)
        with refused:
            socket.create_connection(("127.0.0.2", place.port)).close()
