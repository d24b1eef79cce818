"""Data: from raw files to the folder that training, evaluation and export read."""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.data.dataset import Data, DataSpec, open_data

__all__ = ["Data", "DataSpec", "open_data"]
__getattr__, __dir__ = lazy_contents(__name__, __file__)
