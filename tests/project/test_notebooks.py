"""Every notebook runs, and is stored with outputs that depend on no machine."""

import nbformat
import pytest

from examples.notebooks import execute

pytestmark = [pytest.mark.slow, pytest.mark.pipeline]


FOLDERS = ("/home/", "/tmp/", "/root/", "/work/")  # noqa: S108 what no output may name


# The quickstart calls on the shipped data what `examples.program` does on small ones.
_THOROUGH = {"quickstart"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name in _THOROUGH))
        for name in execute.NAMES
    ],
)
def test_each_notebook_runs_and_shows_what_is_stored(name):
    stored = nbformat.read(execute.FOLDER / f"{name}.ipynb", as_version=4)
    executed = execute.execute(name)
    for old, new in zip(stored.cells, executed.cells, strict=True):
        assert _kinds(old) == _kinds(new), f"run python -m examples.notebooks.execute: {old.source}"
    text = nbformat.writes(stored)
    assert [folder for folder in FOLDERS if folder in text] == []


def test_no_notebook_is_left_out():
    assert {path.stem for path in execute.FOLDER.glob("*.ipynb")} == set(execute.NAMES)


def _kinds(cell):
    """Returns the types of a code cell's outputs."""
    outputs = cell.get("outputs", ())
    return {(output.output_type, *sorted(output.get("data", ()))) for output in outputs}
