"""WarmBase: the model that a training goes on from, the last good one.

A rerun with nothing changed is given what the first run was given, as in
`components.previous`: the last good model is by then what the training itself made, so
it would train again, for ever. A night after a model that was not blessed starts from
the last blessed one again.
"""

from __future__ import annotations

from pathlib import Path

import ml_metadata as mlmd
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Artifact, BaseChannel, Channel
from tfx.types.standard_artifacts import Model, ModelBlessing, PushedModel

from components.latest_blessed import good_models
from components.previous import made_from

_MODEL, _RESOLVED = "model", ("model", "blessing", "pushed")
_BASE = "base"


class WarmBaseStrategy(ResolverStrategy):
    """Takes the newest good model; if equal inputs made a model before, its base instead.

    Args:
        parameters: The training's parameters, which count as inputs.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]]:
        """Returns `model`, an empty list where there is none, and the inputs as they are."""
        models = {model.id: model for model in input_dict[_MODEL]}
        inputs = {key: list(some) for key, some in input_dict.items() if key not in _RESOLVED}
        chosen = self._of_rerun(store, models, inputs)
        if chosen is None:
            good = good_models(input_dict["blessing"], input_dict["pushed"])
            chosen = sorted(
                id_ for id_, model in models.items() if id_ in good and _is_there(model)
            )
        return {
            _MODEL: [models[id_] for id_ in chosen[-1:]],
            "blessing": [],
            "pushed": [],
            **inputs,
        }

    def _of_rerun(
        self,
        store: mlmd.MetadataStore,
        models: dict[int, Artifact],
        inputs: dict[str, list[Artifact]],
    ) -> list[int] | None:
        """Returns the base that equal inputs had, or that they had none; None: no rerun."""
        for id_ in _made_with(store, models, inputs):
            taken = made_from(store, id_, inputs, self._parameters, _BASE)
            # What it was made from may be deleted: then it is made from the last good one.
            # Where the model itself is there, nobody reads its base again.
            if taken is not None and set(taken) <= models.keys() and _is_there(models[id_]):
                return taken
        return None


def _made_with(
    store: mlmd.MetadataStore, models: dict[int, Artifact], inputs: dict[str, list[Artifact]]
) -> list[int]:
    """Returns the models that were made with one of `inputs`, the newest first.

    Of a year of nights these are few, and only they are looked at one by one.
    """
    taken = [artifact.id for artifacts in inputs.values() for artifact in artifacts]
    users = {event.execution_id for event in store.get_events_by_artifact_ids(taken)}
    made = store.get_events_by_artifact_ids(list(models)) if models else []
    return sorted({e.artifact_id for e in made if e.execution_id in users}, reverse=True)


def _is_there(model: Artifact) -> bool:
    return (Path(model.uri) / "model.json").exists()


def WarmBase(parameters: dict[str, str], **inputs: BaseChannel) -> Resolver:
    """Returns the node whose output `model` is the one that a training goes on from.

    Args:
        parameters: The training's parameters.
        **inputs: The training's other inputs, by their keys.
    """
    return Resolver(
        strategy_class=WarmBaseStrategy,
        config={"parameters": parameters},
        model=Channel(type=Model),
        blessing=Channel(type=ModelBlessing),
        pushed=Channel(type=PushedModel),
        **inputs,
    ).with_id("WarmBase")
