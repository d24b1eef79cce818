"""The keys that every stage's part of a config has."""

from __future__ import annotations

from recsys.registry import Plugins
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
