"""Two processes of a run; stages of which the second one hangs in a function.

`python hanging.py STAGE MODULE:FUNCTION WORDS…` runs one of them.
"""

import functools
import importlib
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import jax

from recsys.distributed import coordination
from recsys.distributed.local import free_port
from recsys.distributed.place import Place
from recsys.system.process import last_json_line, stage_main


@contextmanager
def two_processes(*words):
    """Runs a program of Python in two processes of a run, with a device each."""
    coordinator = f"127.0.0.1:{free_port()}"
    own = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"}
    own["KERAS_BACKEND"] = "jax"
    with ExitStack() as stack:
        running = []
        for index in (0, 1):
            place = Place(coordinator, 2, index, is_local=True)
            environment = {**os.environ, **own, **place.environment()}
            process = subprocess.Popen(
                [sys.executable, *words], env=environment, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            running.append(process)
        yield running


def error_of_hanging(stage, function, words):
    """Runs a stage of which the second process hangs in a function; returns the first's error.

    Args:
        stage: Module of the stage.
        function: `module:name` of the function.
        words: The stage's command line.
    """
    with two_processes(__file__, stage, function, *words) as (first, _):
        return last_json_line(first.communicate(timeout=300)[0])["error"]


def hanging(function):
    """Returns a function that sleeps when the second process calls it."""

    @functools.wraps(function)
    def sleeping(*arguments, **options):
        if jax.process_index() == 1:
            time.sleep(3600)
        return function(*arguments, **options)

    return sleeping


if __name__ == "__main__":
    coordination.STEP_S, coordination._OTHERS_S = 60.0, 10.0  # Compiling takes some of it.
    stage = importlib.import_module(sys.argv[1])
    module, _, path = sys.argv[2].partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    setattr(owner, name, hanging(getattr(owner, name)))
    stage_main(functools.partial(stage.main, sys.argv[3:]))
