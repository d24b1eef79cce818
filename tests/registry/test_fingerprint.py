"""The fingerprint of code: a change of what runs changes it."""

import functools
import importlib
import linecache
import sys
import types
from pathlib import Path

import pytest
from places import ROOT
from registrations import undone

from recsys import registry
from recsys.config import TrainConfig
from recsys.config.load import load_config
from recsys.embedding.optimizers import RowOptimizer
from recsys.fingerprint import classes_without_source, code_fingerprint

PLUGIN = """
import recsys
import {helper}

@recsys.register_loss("{name}")
class Loss(recsys.losses.Bpr):
    \"\"\"A loss.\"\"\"
"""


@pytest.fixture
def forget():
    """Undoes what a test registers."""
    with undone():
        yield


@pytest.fixture
def plugin(tmp_path, monkeypatch, forget):
    """Returns the folder of a plugin of two files, and the key of what names it."""
    monkeypatch.syspath_prepend(tmp_path)
    names = {"helper": "fingerprint_helper", "name": "of_two_files"}
    (tmp_path / "fingerprint_plugin.py").write_text(PLUGIN.format(**names))
    (tmp_path / "fingerprint_helper.py").write_text("MARGIN = 1\n")
    importlib.import_module("fingerprint_plugin")
    config = TrainConfig.model_validate({"loss": "of_two_files", "uniform_negatives": 8})
    yield tmp_path, lambda: code_fingerprint(config, root=tmp_path)
    sys.modules.pop("fingerprint_plugin")
    sys.modules.pop("fingerprint_helper")


@pytest.mark.parametrize("file", ["fingerprint_plugin.py", "fingerprint_helper.py"])
def test_a_change_of_a_plugin_or_of_what_it_imports_changes_the_key(plugin, file):
    folder, key = plugin
    before = key()
    with (folder / file).open("a") as text:
        text.write("\n# changed\n")
    assert key() != before


def test_a_change_beside_a_plugin_keeps_the_key(plugin):
    folder, key = plugin
    before = key()
    (folder / "another.py").write_text("import fingerprint_plugin\n")
    assert key() == before


def test_a_row_optimizer_of_a_plugin_is_covered_and_its_plugin_kept(forget):
    @registry.register_row_optimizer("of_plugin")
    class Optimizer(RowOptimizer):
        """A row optimizer."""

    Optimizer.__module__ = "some_plugin.optimizers"
    config = TrainConfig(table_optimizer="of_plugin")
    assert "some_plugin.optimizers" in registry.modules_of(config)
    plugins = ("some_plugin", "another_plugin")
    assert registry.plugins_of(plugins, config) == ("some_plugin",)


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
CONFIG = {"loss": "of_main", "uniform_negatives": 8}


def run_cell(monkeypatch, source, is_kept=True):
    """Runs a cell of a notebook, whose source is kept as IPython does."""
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    if is_kept:
        lines = source.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, "<cell>", (len(source), None, lines, "<cell>"))
    exec(compile(source, "<cell>", "exec"), vars(notebook))  # noqa: S102  As a notebook does.
    return TrainConfig.model_validate(CONFIG)


def test_a_class_of_a_notebook_has_a_key_by_what_it_runs(monkeypatch, forget):
    cells = {"margin": 1, "plot": 1, "factor": 1}
    config = run_cell(monkeypatch, NOTEBOOK.format(**cells))
    before = code_fingerprint(config)
    assert classes_without_source(config) == []
    assert code_fingerprint(config) == before
    for name, is_run in (("margin", True), ("factor", True), ("plot", False)):
        after = run_cell(monkeypatch, NOTEBOOK.format(**{**cells, name: 2}))
        assert (code_fingerprint(after) != before) == is_run, name


def test_a_class_whose_source_is_lost_has_another_key_each_time(monkeypatch, forget):
    config = run_cell(monkeypatch, NOTEBOOK.format(margin=1, plot=1, factor=1), is_kept=False)
    assert classes_without_source(config) == ["Loss"]
    assert code_fingerprint(config) != code_fingerprint(config)


def test_a_class_of_a_script_has_a_key_by_its_file(tmp_path, monkeypatch, forget):
    script = tmp_path / "script.py"
    script.write_text(NOTEBOOK.format(margin=1, plot=1, factor=1))
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(script.read_text(), vars(main))  # noqa: S102  As Python does.
    config = TrainConfig.model_validate(CONFIG)
    assert classes_without_source(config) == []
    before = code_fingerprint(config)
    script.write_text(script.read_text().replace("MARGIN = 1", "MARGIN = 2"))
    assert code_fingerprint(config) != before


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("recsys/strict.py", True),
        ("recsys/report/templates/page.html.jinja", True),
        ("recsys/kernels/rows.c", True),
        ("components/pusher.py", True),
        ("pipelines/runner.py", True),
        ("recsys/kernels/_built.so", False),
        ("recsys/__pycache__/strict.cpython-311.pyc", False),
        ("tests/registry/test_fingerprint.py", False),
    ],
)
def test_all_source_files_of_ours_count(tmp_path, file, counts):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("one")
    before = code_fingerprint(root=tmp_path)
    (tmp_path / file).write_text("two")
    assert (code_fingerprint(root=tmp_path) != before) == counts


def test_the_real_sources_are_found():
    assert code_fingerprint() != code_fingerprint(root=Path("nowhere"))


def test_the_version_of_a_package_counts(tmp_path, monkeypatch):
    before = code_fingerprint(root=tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
    assert code_fingerprint(root=tmp_path) != before


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Returns the parameters of each step, which TFX caches by, for some overrides."""
    pytest.importorskip("tfx")
    retrieval = pytest.importorskip("pipelines.retrieval_pipeline")
    root = f"root={tmp_path_factory.mktemp('root')}"

    @functools.cache
    def parameters(*overrides, name="movielens_small"):
        config = load_config(ROOT / f"configs/{name}.yaml", [root, *overrides])
        steps = retrieval.create_pipeline(config).components
        return {step.id: repr(sorted(step.exec_properties.items(), key=str)) for step in steps}

    return parameters


@pytest.mark.parametrize(
    ("override", "steps"),
    [
        ("evaluate.k=[5,10,50,100]", {"RetrievalEvaluator"}),
        ("evaluate.baselines=[popularity]", {"RetrievalEvaluator"}),
        ("bless.metric=mrr", {"RetrievalEvaluator"}),
        ("export.k=50", {"Exporter"}),
        ("push.keep=3", {"Pusher"}),
        ("train.epochs=1", {"Trainer"}),
        ("keep.days=5", set()),
        ("ranker.train.epochs=1", {"RankTrainer"}),
    ],
)
def test_a_key_of_the_config_runs_the_steps_that_read_it(keys, override, steps):
    name = "movielens_small_two_stage" if override.startswith("ranker") else "movielens_small"
    before, after = keys(name=name), keys(override, name=name)
    assert {step for step in before if before[step] != after[step]} == {*steps, "Reporter"}
