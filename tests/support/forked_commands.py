"""Runs commands as `python -m recsys` does, each in a fork of this process and in a folder.

A line on stdin has the words and the folder; `stderr.txt` in it gets the command's output, stdout
its exit code. The project is only imported before, nothing has run.
"""

import importlib
import json
import os
import runpy
import sys
import traceback

import recsys.cli
import recsys.config.load  # noqa: F401

# Imports of commands, which take most of their time.
THEIRS = ("google_crc32c", "jinja2", "pandas", "pyarrow.csv", "pyarrow.dataset")
for name in (*THEIRS, "rich.markdown", "typer.rich_utils"):
    importlib.import_module(name)


def run(words, folder):
    """Runs a command, and ends the process as it would."""
    os.chdir(folder)
    os.dup2(os.open("stderr.txt", os.O_WRONLY | os.O_CREAT), 2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 0)
    sys.argv, code = ["recsys", *words], 0
    try:
        runpy.run_module("recsys", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 as at the end of any program
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(*json.loads(line))
    sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
    sys.stdout.flush()
