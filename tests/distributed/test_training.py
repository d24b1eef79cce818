"""A process joins the others and waits for them; a training stops on one or two signals."""

import os
import signal
import subprocess
import sys

import pytest
from hanging import error_of_hanging, two_processes
from training_runs import STAGE, Run

from recsys.distributed.coordination import StopRequest
from recsys.distributed.local import free_port
from recsys.distributed.place import Place
from recsys.system import process as process_module
from recsys.system.process import StopSignals, last_json_line


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    times = [100.0]
    monkeypatch.setattr(process_module.time, "monotonic", lambda: times[0])
    return times


def test_one_wish_that_comes_by_two_ways_is_one(clock):
    signals = StopSignals()
    assert not signals.is_set
    assert not signals.add(signal.SIGTERM)
    clock[0] += 0.5
    assert not signals.add(signal.SIGTERM)
    assert signals.is_set


def test_a_second_signal_ends_at_once(clock):
    signals = StopSignals()
    signals.add(signal.SIGINT)
    clock[0] += 5
    assert signals.add(signal.SIGINT)


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


def run_python(text, **own):
    words = [sys.executable, "-c", text]
    return subprocess.run(
        words, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.parametrize(("does", "code"), [("begin", 1), ("pause", 0)])
def test_a_step_that_takes_too_long_ends_with_an_error(does, code):
    text = "import time; from recsys.distributed import coordination as d\n"
    text += "d.n_processes = lambda: 2; watch = d.StepWatch(0.1)\n"
    text += f"with watch.watching(): watch.begin(); watch.{does}(); time.sleep(1)"
    done = run_python(text)
    assert done.returncode == code
    if code:
        assert last_json_line(done.stdout)["error"]["code"] == "R389"


@pytest.mark.parametrize("of", [pytest.param("block", marks=pytest.mark.thorough), "step"])
def test_a_timeout_names_the_processes_that_do_not_wait(of):
    """The other one sleeps, or waits for its own batch; it is found alive by JAX's service."""
    text = """
import contextlib, time
import jax, numpy as np
from jax.experimental.multihost_utils import process_allgather
from recsys.distributed import coordination as d
from recsys.distributed.join import join

@contextlib.contextmanager
def step():
    watch = d.StepWatch(is_reading=lambda: hangs)
    with watch.watching():
        watch.begin()
        yield

def block():
    return contextlib.nullcontext() if hangs else d.ending_after()

join()
process_allgather(np.zeros(1))
d.STEP_S, d._OTHERS_S = 3, 3
hangs = jax.process_index() == 1
with OF():
    time.sleep(300) if hangs else process_allgather(np.zeros(1))
"""
    with two_processes("-c", text.replace("OF()", f"{of}()")) as (first, _):
        said = last_json_line(first.communicate(timeout=200)[0])["error"]
    assert said["code"] == "R389"
    assert said["received"] == "{'processes that did not wait': [1]}"


@pytest.mark.faults
def test_a_process_that_hangs_in_a_validation_is_named_by_those_that_wait(data, tmp_path):
    validation = {"train": {**STAGE["train"], "epochs": 2, "validation": {"every_epochs": 1}}}
    run = Run(tmp_path / "run", data, {**STAGE, **validation})
    words = [f"--config={run.folder / 'stage.json'}", f"--data={data}", f"--out={run.model}"]
    error = error_of_hanging(
        "recsys.stages.train", "recsys.tasks.retrieval.training.epoch_work:Validator.metrics", words
    )
    assert error["code"] == "R389"
    assert error["received"] == "{'processes that did not wait': [1]}"


@pytest.mark.faults
def test_one_process_may_work_for_longer_than_gloo_waits():
    text = "import jax, time; from recsys.distributed import coordination as d\n"
    text += "from recsys.distributed.join import join\n"
    text += "join(); before = d.jointly(lambda: time.sleep(33 * jax.process_index()))\n"
    text += "print(d.agreed(lambda: time.sleep(33) or [jax.process_index(), len(before)]))"
    with two_processes("-c", text) as running:
        printed = [process.communicate(timeout=200)[0].splitlines() for process in running]
    assert [lines[-1] for lines in printed] == ["[0, 2]"] * 2


def test_jax_takes_the_address_by_which_others_find_a_process():
    text = "import jax; from recsys.distributed.join import join\n"
    text += "join(); print(jax.process_count(), jax.local_device_count())"
    place = Place(f"127.0.0.1:{free_port()}", is_local=True)
    done = run_python(text, **place.environment())
    assert done.stdout == "1 1\n"
