"""Tasks: learning from events, judging models, and serving them.

A stage is a process with one backend: training and judging use Keras on JAX, the export Keras on
TensorFlow, the server neither. So a task has three sides, each imported only where it is used.

training_side     the training examples, and the work between epochs
judging_side      the case on which models are measured, and their values
serving_side      the contents of a bundle
serving           parts of bundles that tasks share
retrieval         models that rank the items of a catalogue for a query
ranking           models that predict labels of pairs of a query and an item
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from recsys import registry
from recsys.strict import Strict


class Task(Strict):
    """A kind of task; a subclass is registered with `recsys.register_task`.

    docs/tutorial/own_task.md says what a task needs.

    Attributes:
        training: `module:Class` of a `recsys.tasks.training_side.TrainingSide`.
        judging: `module:Class` of a `recsys.tasks.judging_side.JudgingSide`.
        serving: `module:Class` of a `recsys.tasks.serving_side.ServingSide`.
        model: Name of the model of a config that names only the task; None: it must name one.
        loss: Name of the loss of a config without `train.loss`; None: the default of that key,
            which a model may ignore.
        metrics: Names of the metrics of a config without `evaluate.metrics`; None: the default of
            that key.
        baselines: Names of the baselines of a config without `evaluate.baselines`; None: the
            default of that key.
        bless: Values of the keys of `bless` that a config doesn't set, other than their defaults.
        train: Defaults of other keys of `train`, by key.
    """

    training: ClassVar[str]
    judging: ClassVar[str]
    serving: ClassVar[str]
    model: ClassVar[str | None] = None
    loss: ClassVar[str | None] = None
    metrics: ClassVar[tuple[str, ...] | None] = None
    baselines: ClassVar[tuple[str, ...] | None] = None
    bless: ClassVar[Mapping[str, Any]] = {}
    train: ClassVar[Mapping[str, Any]] = {}


def side_of(config: Any, name: Literal["training", "judging", "serving"]) -> Any:
    """Returns the class of a side of the task of a model's config, or of a class of configs.

    Raises:
        UsageError: No task has this name (R109).
    """
    return registry.load(getattr(registry.get("task", config.task), name))
