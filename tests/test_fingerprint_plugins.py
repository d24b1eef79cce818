"""What a class of one's own runs is part of the keys, and of the identity of a training."""

import importlib
import shutil
import sys
import types
from pathlib import Path

import pytest

from recsys import registry
from recsys.config import TrainConfig
from recsys.embedding.optimizers import RowOptimizer
from recsys.fingerprint import code_fingerprint

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = """
import recsys
import {helper}

@recsys.register_loss("{name}")
class Loss(recsys.losses.Bpr):
    \"\"\"A loss.\"\"\"
"""


@pytest.fixture
def forget(monkeypatch):
    """Undoes what a test registers."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture
def plugin(tmp_path, monkeypatch, forget):
    """Returns the folder of a plugin of two files, and the key of what names it."""
    monkeypatch.syspath_prepend(tmp_path)
    names = {"helper": "fingerprint_helper", "name": "of_two_files"}
    (tmp_path / "fingerprint_plugin.py").write_text(PLUGIN.format(**names))
    (tmp_path / "fingerprint_helper.py").write_text("MARGIN = 1\n")
    for file in ("__init__.py", "losses/__init__.py", "losses/pairwise.py", "losses/batch.py"):
        (tmp_path / "recsys" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "recsys" / file, tmp_path / "recsys" / file)
    importlib.import_module("fingerprint_plugin")
    config = TrainConfig.model_validate({"loss": "of_two_files", "uniform_negatives": 8})
    yield tmp_path, lambda: code_fingerprint(config=[config], root=tmp_path)
    sys.modules.pop("fingerprint_plugin")
    sys.modules.pop("fingerprint_helper")


@pytest.mark.parametrize(
    ("file", "is_run"),
    [
        ("fingerprint_plugin.py", True),
        ("fingerprint_helper.py", True),
        ("recsys/losses/pairwise.py", True),
        ("recsys/losses/batch.py", True),
        ("recsys/losses/softmax.py", False),
    ],
)
def test_what_a_plugin_imports_changes_its_key(plugin, file, is_run):
    folder, key = plugin
    before = key()
    with (folder / file).open("a") as text:
        text.write("\n# changed\n")
    assert (key() != before) == is_run


def test_a_row_optimizer_of_a_plugin_is_covered_and_its_plugin_kept(forget):
    @registry.register_row_optimizer("of_plugin")
    class Optimizer(RowOptimizer):
        """A row optimizer."""

    Optimizer.__module__ = "some_plugin.optimizers"
    config = TrainConfig(table_optimizer="of_plugin")
    assert "some_plugin.optimizers" in registry.modules_of(config)
    plugins = ("some_plugin", "another_plugin")
    assert registry.plugins_of(plugins, config) == ("some_plugin",)


def key_of_notebook(monkeypatch, source):
    """Returns the key of the loss `of_main` that a notebook defines."""
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec(compile(source, "<cell>", "exec"), vars(notebook))  # noqa: S102  As a notebook does.
    config = TrainConfig.model_validate({"loss": "of_main", "uniform_negatives": 8})
    return code_fingerprint(config=[config])


NOTEBOOK = """
import recsys

MARGIN = {margin}

def plot():
    return {plot}

def margin():
    return MARGIN

@recsys.register_loss("of_main")
class Loss(recsys.Loss):
    \"\"\"A loss.\"\"\"

    def __call__(self, query, candidate, **others):
        return margin() * {factor}
"""


def test_a_class_of_a_notebook_has_a_key_by_what_it_runs(monkeypatch, forget):
    cells = {"margin": 1, "plot": 1, "factor": 1}
    before = key_of_notebook(monkeypatch, NOTEBOOK.format(**cells))
    for name, is_run in (("margin", True), ("factor", True), ("plot", False)):
        after = key_of_notebook(monkeypatch, NOTEBOOK.format(**{**cells, name: 2}))
        assert (after != before) == is_run, name


def test_a_class_of_a_script_has_a_key_by_its_file(tmp_path, monkeypatch, forget):
    script = tmp_path / "script.py"
    script.write_text(NOTEBOOK.format(margin=1, plot=1, factor=1))
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(script.read_text(), vars(main))  # noqa: S102  As Python does.
    config = TrainConfig.model_validate({"loss": "of_main", "uniform_negatives": 8})
    before = code_fingerprint(config=[config])
    script.write_text(script.read_text().replace("MARGIN = 1", "MARGIN = 2"))
    assert code_fingerprint(config=[config]) != before
