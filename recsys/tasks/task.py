"""Tasks: learning from events, judging models, and serving them.

A stage is a process with one backend: training and judging use Keras on JAX, the export Keras on
TensorFlow, the server neither. So a task has three sides, each imported only where it is used.
"""

from __future__ import annotations

from typing import Any, ClassVar

from recsys import registry
from recsys.strict import Strict
from recsys.tasks.serving_side import ServingSide


class Task(Strict):
    """A kind of task; a subclass is registered with `recsys.register_task`.

    The registry of tasks is provisional: a release may change the sides' methods.

    Attributes:
        training: `module:Class` of a `recsys.tasks.training_side.TrainingSide`.
        judging: `module:Class` of a `recsys.tasks.judging_side.JudgingSide`.
        serving: `module:Class` of a `recsys.tasks.serving_side.ServingSide`.
    """

    training: ClassVar[str]
    judging: ClassVar[str]
    serving: ClassVar[str]


def task_of(config: Any) -> type[Task]:
    """Returns the task of a model's config, or of a class of configs.

    Raises:
        UsageError: No task has this name (R109).
    """
    cls: type[Task] = registry.get("task", config.task)
    return cls


def training_side(config: Any) -> Any:
    """Returns the class of the training side of a model's task."""
    return registry.load(task_of(config).training)


def judging_side(config: Any) -> Any:
    """Returns the class of the judging side of a model's task."""
    return registry.load(task_of(config).judging)


def serving_side(config: Any) -> type[ServingSide]:
    """Returns the class of the serving side of a model's task."""
    side: type[ServingSide] = registry.load(task_of(config).serving)
    return side
