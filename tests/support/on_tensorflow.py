"""Runs tests' scripts with Keras on TensorFlow: the tests' own process has it on JAX.

To import TensorFlow and Transform takes ten seconds. A process does it once, and forks for
each script. Nothing has run in it yet, so that a fork is as good as a new process.
"""

import atexit
import contextlib
import functools
import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent


def run_on_tensorflow(script: Path, folder: Path, *more: object) -> str:
    """Runs `script` in a process of its own, which must end well; returns its stdout."""
    process, logs = _forking(), [str(folder / f"{script.stem}.{name}") for name in ("out", "err")]
    request = {"words": [str(word) for word in (script, folder, *more)], "logs": logs}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    code = process.stdout.readline()
    out, err = (Path(log).read_text() for log in logs)
    assert code == "0\n", code + err[-4000:]
    return out


@functools.cache
def _forking() -> subprocess.Popen[str]:
    path = os.pathsep.join([str(_ROOT), os.environ["PYTHONPATH"]])
    process = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": "tensorflow"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    atexit.register(process.communicate)  # It ends with its stdin.
    return process


def _main() -> None:
    with contextlib.suppress(ImportError):
        import tensorflow_transform.beam  # noqa: F401
    import recsys.bundles.export
    import recsys.serving.recommendations
    import recsys.tasks.ranking.serving.side
    import recsys.tasks.retrieval.serving.side  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_script(**json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _run_script(words: list[str], logs: list[str]) -> None:
    """Runs a script as `python` does, and ends the process."""
    for descriptor, log in enumerate(logs, 1):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv, code = words, 1
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 as at the end of any program
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
