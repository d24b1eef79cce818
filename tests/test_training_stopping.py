"""Who asks a training to stop, and who asks twice."""

import signal

import pytest

from recsys.training import stopping
from recsys.training.stopping import StopRequest, Wish


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    times = [100.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: times[0])
    return times


def test_one_wish_that_comes_by_two_ways_is_one(clock):
    wish = Wish()
    assert not wish.is_there
    assert not wish.insists()
    clock[0] += 0.5
    assert not wish.insists()
    assert wish.is_there


def test_who_asks_again_later_insists(clock):
    wish = Wish()
    wish.insists()
    clock[0] += 5
    assert wish.insists()


def test_a_second_signal_goes_to_whoever_heard_it_before(clock):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:
        stop = StopRequest()
        with stop.listening():
            assert not stop.is_due(1)
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_due(2)
            assert heard == []
            clock[0] += 5
            signal.raise_signal(signal.SIGTERM)
            assert heard == ["before"]
        signal.raise_signal(signal.SIGTERM)
        assert heard == ["before", "before"]
    finally:
        signal.signal(signal.SIGTERM, before)
