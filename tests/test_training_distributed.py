"""Who asks a training to stop, and who asks twice."""

import signal

import pytest

from recsys.training import distributed
from recsys.training.distributed import StopRequest, StopSignals


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    times = [100.0]
    monkeypatch.setattr(distributed.time, "monotonic", lambda: times[0])
    return times


def test_one_wish_that_comes_by_two_ways_is_one(clock):
    signals = StopSignals()
    assert not signals.is_set
    assert not signals.add()
    clock[0] += 0.5
    assert not signals.add()
    assert signals.is_set


def test_who_asks_again_later_insists(clock):
    signals = StopSignals()
    signals.add()
    clock[0] += 5
    assert signals.add()


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
