"""Training: the loop, its input, its checkpoints, and warm starts."""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.training.trainer import Trainer
    from recsys.training.training_result import TrainingResult

__all__ = ["Trainer", "TrainingResult"]
__getattr__, __dir__ = lazy_contents(__name__, __file__)
