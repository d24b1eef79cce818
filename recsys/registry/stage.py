"""The config keys that every stage has."""

from __future__ import annotations

from typing import TypeVar

from recsys.registry.choice import plugins_of
from recsys.registry.registered import Plugins
from recsys.strict import Repeats, Strict


class Stage(Strict):
    """Keys of every stage."""

    plugins: Plugins = ()
    """Modules that register models, losses, metrics and other classes, imported before the rest of
    the config is read."""
    repeats: Repeats = "exclude"
    """Whether lists may contain items that their user has already interacted with. `exclude`: no,
    and repeated events are not evaluated; `include`: yes, they are treated like other items.
    Applies to validation, evaluation and the defaults of serving."""


StageT = TypeVar("StageT", bound=Stage)


def stage_of(config: Stage, kind: type[StageT]) -> StageT:
    """Returns the parts of `config` that the stage `kind` needs, and the plugins for them."""
    parts = {name: getattr(config, name) for name in kind.model_fields}
    return kind(**{**parts, "plugins": plugins_of(config.plugins, *parts.values())})
