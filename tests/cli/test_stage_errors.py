"""Unexpected exceptions of a stage reach its parent, and prints go to stderr."""

import os
import runpy
import sys

import pytest

from pipelines.run_record import as_recsys_error
from recsys import errors
from recsys.errors import RecsysError, unexpected_error
from recsys.system.process import run_stage

PLUGIN = """
import os
import recsys

@recsys.register_loss("of_a_plugin")
class OfAPlugin(recsys.Loss):
    title = "A loss"

def loud():
    print("seen by the plugin")
    os.system("echo seen by its child")
    print('{"made": 2}')

def fails(text):
    raise ValueError(text)

def runs_out():
    raise MemoryError
"""
STAGE = """
import sys
import my_plugin
from recsys.system.process import stage_main

def stage():
    my_plugin.loud()
    if sys.argv[1] == "library":
        int("many")
    if sys.argv[1] == "keras":
        import keras
        class Broken(keras.layers.Layer):
            def call(self, x):
                return my_plugin.fails("another width")
        Broken()(keras.ops.ones((2, 3)))
    if sys.argv[1] != "good":
        getattr(my_plugin, sys.argv[1])(*sys.argv[2:])
    return {"made": 1}

if __name__ == "__main__":
    stage_main(stage)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that runs the stage: it returns the result, and what the log has."""
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    (tmp_path / "planted_stage.py").write_text(STAGE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    def run(*words):
        with (tmp_path / "log.txt").open("wb") as log:
            return run_stage("planted_stage", words, {}, log)

    run.log = tmp_path / "log.txt"
    return run


def test_what_a_plugin_prints_is_in_the_log_and_not_in_the_answer(run):
    assert run("good") == {"made": 1}
    assert run.log.read_text().splitlines() == [
        "seen by the plugin",
        "seen by its child",
        '{"made": 2}',
    ]


def test_an_exception_of_a_plugin_is_reported_with_its_line(run):
    with pytest.raises(RecsysError, match="R610") as raised:
        run("fails", "the width\nis wrong")
    text = str(raised.value)
    assert "my_plugin raised ValueError: the width, in fails" in text
    assert "my_plugin.py:15" in text
    assert "memory" not in text
    assert "seen by the plugin" in run.log.read_text()
    assert "Traceback" in run.log.read_text()


def test_keras_does_not_hide_what_a_plugin_raised(run):
    with pytest.raises(
        RecsysError, match=r"R610.*my_plugin raised ValueError: another width, in f"
    ):
        run("keras")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["library"], r"The stage raised ValueError: invalid literal for int.*planted_stage"),
        (["runs_out"], r"my_plugin raised MemoryError.*memory"),
    ],
)
def test_other_exceptions_are_reported_too(run, words, said):
    with pytest.raises(RecsysError, match=rf"R610.*{said}"):
        run(*words)


def test_a_step_of_the_pipeline_names_the_plugin_too(tmp_path):
    (tmp_path / "of_a_step.py").write_text(PLUGIN.replace("of_a_plugin", "of_a_step"))
    plugin = runpy.run_path(str(tmp_path / "of_a_step.py"), run_name="plugin_of_a_step")
    with pytest.raises(ValueError, match="column") as raised:
        plugin["fails"]("no such column")
    wrapped = RuntimeError("while running a step")
    wrapped.__cause__ = raised.value
    error = as_recsys_error(wrapped, "InteractionGen", tmp_path)
    assert error.code == "R600"
    assert "raised ValueError: no such column, in fails" in str(error)
    assert "of_a_step.py:15" in str(error)


def test_an_exception_in_code_without_a_module_is_reported(monkeypatch):
    # Other tests of the process may have made `tests` the package of a plugin.
    monkeypatch.setattr(errors, "PLUGIN_PACKAGES", set())
    source = compile("{}['a name']", "made.py", "eval")
    with pytest.raises(KeyError) as raised:
        eval(source, {"__builtins__": {}})  # noqa: S307 code that this test writes
    told = unexpected_error(raised.value)
    assert told.code == "R610"
    assert "made.py:1" in told.rule
