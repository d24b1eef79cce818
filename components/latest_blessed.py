"""LatestBlessed: the last good model that is not the one just trained.

TFX's own strategy takes the latest of all. On a rerun with nothing changed that
is the current model itself, so the evaluation would run again, to compare a model
with itself.
"""

from __future__ import annotations

import ml_metadata as mlmd
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Artifact, BaseChannel, Channel
from tfx.types.standard_artifacts import Model, ModelBlessing


class LatestBlessedStrategy(ResolverStrategy):
    """Takes the newest blessed model, the current one left out."""

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]]:
        """Returns the model and the current one; no model where none was blessed."""
        del store
        current = {model.id for model in input_dict["current"]}
        blessed = {
            blessing.get_int_custom_property("current_model_id")
            for blessing in input_dict["blessing"]
            if blessing.get_int_custom_property("blessed") == 1
        }
        candidates = [
            model
            for model in input_dict["model"]
            if model.id in blessed and model.id not in current
        ]
        newest = sorted(candidates, key=lambda model: model.id)[-1:]
        return {"model": newest, "blessing": [], "current": list(input_dict["current"])}


def LatestBlessed(current: BaseChannel) -> Resolver:
    """Returns the node whose output `model` is the last blessed model but `current`."""
    return Resolver(
        strategy_class=LatestBlessedStrategy,
        model=Channel(type=Model),
        blessing=Channel(type=ModelBlessing),
        current=current,
    ).with_id("LatestBlessed")
