"""What the evaluation needs of the config."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from recsys.config.evaluation import BlessConfig, EvaluateConfig, check_rules
from recsys.registry import Plugins
from recsys.strict import Repeats, Strict


class EvaluateStage(Strict):
    """The parts of a config that the evaluation needs."""

    plugins: Plugins = ()
    """Modules that register classes which the other keys name."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """The evaluation over the whole catalogue."""
    bless: BlessConfig = BlessConfig()
    """What a model must reach to be pushed."""
    report_users: tuple[str, ...] = ()
    """Ids of users whose recommendations are shown; empty: three are chosen."""
    repeats: Repeats = "exclude"
    """What becomes of items that a user has seen."""

    @model_validator(mode="after")
    def _rules_can_be_judged(self) -> Self:
        check_rules(self.evaluate, self.bless)
        return self
