"""Data: from raw files to the folder that training, evaluation and export read."""

from recsys.system.lean_imports import lazy_contents

__all__, __getattr__, __dir__ = lazy_contents(
    __name__, {"recsys.data.dataset": "Data DataSpec open_data"}
)
