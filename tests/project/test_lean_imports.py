"""Imports of large packages by the processes that we start, and later imports."""

from __future__ import annotations

import graphlib
import os
import subprocess
import sys

import grimp

from recsys.system.parent import child_command


def printed(folder, program):
    """Returns what a program prints that runs as our stages do, with the modules of a folder."""
    (folder / "own_program.py").write_text(program)
    # Without what imports so in any process that a test starts.
    path = [str(folder), *(path for path in sys.path if not path.endswith("startup"))]
    child = subprocess.run(
        child_command("own_program"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


_KERAS = """
import importlib.util, sys
# As TensorFlow does, and others.
assert importlib.util.find_spec("keras").origin == importlib.util.find_spec("keras").origin
import keras
assert type(keras.__loader__) is type(importlib.util.find_spec("IPython").loader)
print(sys.modules.keys() & {"IPython", "pandas", "sklearn"}, keras.ops.ones((1, 2)).shape)
import IPython, pandas, sklearn
"""


def test_keras_is_imported_without_optional_packages_which_still_work_later(tmp_path):
    assert printed(tmp_path, _KERAS) == "set() (1, 2)\n"


_TENSORFLOW = """
import sys
import tensorflow
print(tensorflow.converts_jax, "jax" in sys.modules)
import jax
sys.modules.pop("tensorflow")
import tensorflow
print(tensorflow.converts_jax)
"""


def test_tensorflow_sees_jax_where_somebody_has_imported_it(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    (tmp_path / "jax.py").write_text("")
    (tmp_path / "tensorflow.py").write_text(
        "try:\n    import jax\n    converts_jax = True\nexcept ImportError:\n"
        "    converts_jax = False\n"
    )
    assert printed(tmp_path, _TENSORFLOW) == "False False\nTrue\n"


_KERAS_ON_JAX = """
import tensorflow
import keras
print(keras.random.uniform((2,)).shape)
"""


def test_keras_on_jax_is_whole_where_tensorflow_is_imported_first(tmp_path):
    """TensorFlow imports Keras, and is kept from importing JAX unless Keras needs it."""
    assert os.environ["KERAS_BACKEND"] == "jax"
    assert printed(tmp_path, _KERAS_ON_JAX) == "(2,)\n"


_TFX = """
import sys
from tfx.components.pusher import Pusher
from tfx.components import pusher
print(pusher.Pusher is Pusher, "tfx.components.everything" in sys.modules)
assert not hasattr(pusher, "Nothing")
from tfx.components import Evaluator
import tfx.components
print(Evaluator, tfx.components.__version__, hasattr(tfx.components, "Nothing"))
print(type(tfx.components.__loader__) is type(pusher.__loader__))
"""


def test_the_contents_of_tfx_are_imported_when_one_is_requested(tmp_path):
    components = tmp_path / "tfx" / "components"
    components.mkdir(parents=True)
    (tmp_path / "tfx" / "__init__.py").write_text("")
    (components / "pusher.py").write_text("class Pusher: pass")
    (components / "everything.py").write_text("Evaluator = 'the evaluator'")
    (components / "__init__.py").write_text(
        "from tfx.components.everything import Evaluator\n__version__ = '1'\n"
    )
    assert printed(tmp_path, _TFX) == "True False\nthe evaluator 1 False\nTrue\n"


_COMMAND = """
import sys
from recsys.cli import main
try:
    main(["--version"])
except SystemExit:
    print([type(finder).__name__ for finder in sys.meta_path].count("LeanImports"))
sys.argv[1:] = ["--version"]
try:
    main()
except SystemExit:
    print([type(finder).__name__ for finder in sys.meta_path].count("LeanImports"))
"""


def test_only_the_command_line_itself_defers_imports():
    path = [path for path in sys.path if not path.endswith("startup")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    child = subprocess.run(
        [sys.executable, "-c", _COMMAND],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.split()[1::2] == ["0", "1"]


# --- the import graph


def circle_in(imports):
    """Returns modules that import each other in a circle; none if there is no circle."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_a_circle_is_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in (["b", "c", "b"], ["c", "b", "c"])


def test_no_modules_import_each_other_in_a_circle():
    roots = ("recsys", "components", "pipelines")
    graph = grimp.build_graph(*roots, exclude_type_checking_imports=True, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 200
    assert circle_in(imports) == []
