"""How the positives of a store were split, as the store and its models remember it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from recsys.config import Order, Split


@dataclasses.dataclass(frozen=True)
class SplitRule:
    """How positives were split.

    Attributes:
        split: Which were held out, as `data.split` says.
        order: What orders the events.
        eval_share: Share that was held out at random; None with another split [0..1].
    """

    split: Split = "time"
    order: Order = "time"
    eval_share: float | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SplitRule:
        """Returns the rule that `to_json` described; by time where nothing is said."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: fields[name] for name in names if name in fields})

    def to_json(self) -> dict[str, Any]:
        """Returns the rule as plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_text(cls, text: str | bytes | None) -> SplitRule:
        """Returns the rule that `text` describes; by time where it is empty or None."""
        return cls.from_json(json.loads(text)) if text else cls()

    @property
    def text(self) -> str:
        """The rule as JSON."""
        return json.dumps(self.to_json())


BY_TIME = SplitRule()
