"""The key of each step: it changes with what the step runs, and with nothing else.

Sources are edited in a copy of the tree; what a step really imports is asked of Python.
"""

import ast
import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recsys.config.load import load_config
from recsys.fingerprint import code_fingerprint

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("recsys", "components", "pipelines")
STEPS = {
    "InteractionGen": ("components.interaction_gen",),
    "EntityGen": ("components.entity_gen",),
    "DriftValidator": ("components.drift_validator",),
    "DataGate": ("components.data_gate",),
    "VocabularyGen": ("components.vocabulary_gen",),
    "Transform": ("recsys.data.ingest.transform",),
    "InteractionEncoder": ("components.interaction_encoder",),
    "Trainer": ("components.model_trainer", "recsys.train"),
    "RetrievalEvaluator": ("components.retrieval_evaluator", "recsys.evaluation.stage"),
    "Exporter": ("components.exporter", "recsys.bundles.export"),
    "Pusher": ("components.pusher",),
    "Reporter": ("components.reporter",),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=ignored)
    return root


@pytest.fixture(scope="module")
def before(tree):
    return {step: code_fingerprint(*modules, root=tree) for step, modules in STEPS.items()}


def changed_by(root, before, *files):
    """Returns the steps whose key changes when a line is added to `files`."""
    texts = {root / file: (root / file).read_text() for file in files}
    for path, text in texts.items():
        path.write_text(text + "\n# one more metric\n")
    try:
        return {s for s in STEPS if code_fingerprint(*STEPS[s], root=root) != before[s]}
    finally:
        for path, text in texts.items():
            path.write_text(text)


def test_what_only_looks_at_a_model_trains_nothing_anew(tree, before):
    files = (
        "recsys/evaluation/stage.py",
        "recsys/evaluation/evaluation_file.py",
        "recsys/metrics/beyond_accuracy.py",
        "recsys/evaluation/measurement.py",
        "recsys/evaluation/blessing.py",
        "recsys/config/evaluation.py",
        "recsys/config/run_config.py",
        "recsys/config/__init__.py",
        "recsys/config/load.py",
        "recsys/report/figures.py",
        "recsys/report/run_report.py",
        "recsys/report/templates/metrics.jinja",
        "recsys/report/templates/report.html.jinja",
        "recsys/bundles/graph.py",
        "recsys/bundles/model_card.py",
        "recsys/cli/run.py",
        "recsys/runs/backtest_page.py",
        "pipelines/runner.py",
    )
    assert changed_by(tree, before, *files) == {"RetrievalEvaluator", "Exporter", "Reporter"}


@pytest.mark.parametrize(
    ("file", "steps"),
    [
        ("recsys/metrics/beyond_accuracy.py", {"RetrievalEvaluator"}),
        ("recsys/config/evaluation.py", {"RetrievalEvaluator"}),
        ("recsys/report/templates/metrics.jinja", {"Reporter"}),
        ("recsys/report/templates/statistics.html.jinja", {"DriftValidator", "Reporter"}),
        ("recsys/report/templates/page.html.jinja", {"DriftValidator", "Reporter"}),
        ("recsys/bundles/model_card.py", {"Exporter"}),
        ("recsys/training/loop.py", {"Trainer"}),
        ("recsys/nothing.py", set()),
        ("recsys/kernels/_built.so", set()),
    ],
)
def test_a_source_changes_the_keys_of_the_steps_that_run_it_alone(tree, before, file, steps):
    (tree / file).touch()
    assert changed_by(tree, before, file) == steps


@pytest.mark.parametrize(
    ("file", "steps"),
    [
        ("recsys/metrics/accuracy.py", {"Trainer", "RetrievalEvaluator"}),
        ("recsys/evaluation/ranking.py", {"Trainer", "RetrievalEvaluator"}),
        ("recsys/config/training.py", {"Trainer", "RetrievalEvaluator", "Exporter"}),
        ("recsys/config/data.py", set(STEPS) - {"DriftValidator", "Pusher"}),
        ("recsys/strict.py", set(STEPS)),
        ("recsys/kernels/rows.c", {"Trainer"}),
        ("recsys/data/sources/csv_source.py", {"InteractionGen", "EntityGen"}),
        ("recsys/data/ingest/cache.py", {"InteractionGen"}),
        ("recsys/bundles/publishing.py", {"Pusher"}),
    ],
)
def test_what_a_step_runs_changes_its_key(tree, before, file, steps):
    assert changed_by(tree, before, file) >= steps


LOADED = """
import importlib, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
print(json.dumps(sorted(
    name for name in sys.modules if name.split(".")[0] in ("recsys", "components", "pipelines")
)))
"""
BY_HAND = {"recsys.config.load", "recsys.config.safe_yaml"}
OF_EVALUATION = ("recsys.metrics", "recsys.evaluation")
"""What `evaluate` names by default is imported wherever a config is read. The evaluator's key
has it by the part of the config that it gets; of the others' it is none of their business."""


def is_contents(module):
    """Returns whether a module is a table of contents, or what looks a name up in them.

    What is taken from one is imported from the module that defines it, which is in the key.
    """
    text = source(ROOT, module).read_text()
    return "lazy_contents(__name__" in text or module == "recsys.contents"


def loaded_by(root, *modules):
    """Returns the modules of ours that importing some of them loads."""
    command = [sys.executable, "-c", LOADED, *modules]
    out = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout.splitlines()[-1]))


def covered(root, modules, loaded):
    """Returns those of the `loaded` modules whose source is part of the key."""
    before = code_fingerprint(*modules, root=root)
    inside = set()
    for name in loaded:
        path = source(root, name)
        text = path.read_bytes()
        path.write_bytes(text + b"\n# changed\n")
        if code_fingerprint(*modules, root=root) != before:
            inside.add(name)
        path.write_bytes(text)
    return inside


def source(root, module):
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


QUICK = "DriftValidator"


@pytest.mark.parametrize(
    "step",
    [QUICK, *(pytest.param(s, marks=pytest.mark.thorough) for s in STEPS if s != QUICK)],
)
def test_every_module_that_a_step_imports_is_part_of_its_key(tree, step):
    """But for tables of contents, and for what reads a whole config by hand."""
    pytest.importorskip("tfx")
    modules = STEPS[step]
    loaded = loaded_by(tree, *modules)
    along = {name for name in loaded if name.startswith("recsys.config.") or is_contents(name)}
    along |= BY_HAND
    if step != "RetrievalEvaluator" and "recsys.config.load" in loaded:
        of_config = loaded_by(tree, "recsys.config.evaluation")
        along |= {name for name in of_config if name.startswith(OF_EVALUATION)}
    assert covered(tree, modules, loaded - along) == loaded - along
    assert len(loaded - along) > 3


def test_modules_of_the_config_only_define():
    """So one that a step takes along, and uses no name of, changes nothing in it."""
    definitions = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AnnAssign)
    files = (ROOT / "recsys/config").glob("*.py")
    for file in (file for file in files if f"recsys.config.{file.stem}" not in BY_HAND):
        for node in ast.parse(file.read_text()).body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            is_definition = isinstance(node, (*definitions, ast.Assign))
            assert is_text or is_guard or is_definition, f"{file.name}:{node.lineno}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Returns the parameters of each step, which TFX caches by, for some overrides."""
    pytest.importorskip("tfx")
    retrieval = pytest.importorskip("pipelines.retrieval_pipeline")
    root = f"root={tmp_path_factory.mktemp('root')}"

    @functools.cache
    def parameters(*overrides):
        config = load_config(ROOT / "configs/movielens_small.yaml", [root, *overrides])
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
    ],
)
def test_a_key_of_the_config_runs_the_steps_that_read_it(keys, override, steps):
    before, after = keys(), keys(override)
    assert {step for step in before if before[step] != after[step]} == {*steps, "Reporter"}
