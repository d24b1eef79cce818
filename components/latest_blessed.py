"""LatestBlessed: the last good model that is not the one just trained.

A model that was pushed and then rolled back is no good one: somebody decided so.

TFX's own strategy takes the latest of all. On a rerun with nothing changed that
is the current model itself, so the evaluation would run again, to compare a model
with itself.
"""

from __future__ import annotations

from pathlib import Path

import ml_metadata as mlmd
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Artifact, BaseChannel, Channel
from tfx.types.standard_artifacts import Model, ModelBlessing, PushedModel

from components.artifacts import CURRENT_MODEL
from components.pusher import DESTINATION
from recsys.bundles.versions import VersionRegistry


class LatestBlessedStrategy(ResolverStrategy):
    """Takes the newest blessed model; the current one and those rolled back left out."""

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]]:
        """Returns the model and the current one; no model where none was blessed."""
        del store
        current = {model.id for model in input_dict["current"]}
        good = good_models(input_dict["blessing"], input_dict["pushed"]) - current
        candidates = [model for model in input_dict["model"] if model.id in good]
        newest = sorted(candidates, key=lambda model: model.id)[-1:]
        return {
            "model": newest,
            "blessing": [],
            "pushed": [],
            "current": list(input_dict["current"]),
        }


def good_models(blessings: list[Artifact], pushed: list[Artifact]) -> set[int]:
    """Returns the ids of the models that were blessed, without those rolled back.

    Args:
        blessings: What the evaluations said.
        pushed: What was pushed by them.
    """
    blessed = {
        blessing.get_int_custom_property(CURRENT_MODEL)
        for blessing in blessings
        if blessing.get_int_custom_property("blessed") == 1
    }
    return blessed - _rolled_back(pushed)


def _rolled_back(pushed: list[Artifact]) -> set[int]:
    """Returns the ids of the models whose version was taken out of service."""
    ledgers: dict[Path, VersionRegistry] = {}
    models = set()
    for push in pushed:
        destination = Path(push.get_string_custom_property(DESTINATION))
        root = destination.parent
        if not destination.name.isdecimal() or not root.is_dir():
            continue  # Nothing was pushed, or what was served is gone.
        if root not in ledgers:
            ledgers[root] = VersionRegistry.open(root)
        if int(destination.name) in ledgers[root].withdrawn:
            models.add(push.get_int_custom_property(CURRENT_MODEL))
    return models


def LatestBlessed(current: BaseChannel) -> Resolver:
    """Returns the node whose output `model` is the last blessed model but `current`."""
    return Resolver(
        strategy_class=LatestBlessedStrategy,
        model=Channel(type=Model),
        blessing=Channel(type=ModelBlessing),
        pushed=Channel(type=PushedModel),
        current=current,
    ).with_id("LatestBlessed")
