"""`recsys synth`: data of any size with planted structure."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from recsys.synth import synthesize


def synth(users: int, items: int, interactions: int, out: Path, seed: int) -> None:
    """Writes the data and prints what was written as JSON."""
    summary = synthesize(out, users=users, items=items, interactions=interactions, seed=seed)
    print(json.dumps(dataclasses.asdict(summary), default=str))
