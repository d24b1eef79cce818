"""Python imports this when it starts: what a test starts imports Keras as our stages do.

Without what Keras looks for and no test needs, which takes longer to import than Keras. Nothing
of ours counts as imported by it.

Garbage is looked for less often: to import and to trace makes many objects and hardly any.
"""

import gc
import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "lean_imports", Path(__file__).parents[2] / "recsys" / "system" / "lean_imports.py"
)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_module.install()
gc.set_threshold(20_000, 20, 20)
