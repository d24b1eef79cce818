"""Two nights of small data, and the config of a run that takes seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

NAME = "tiny"
_DAY_S = 86_400
_USERS, _ITEMS, _EVENTS, _NEW_EVENTS = 40, 60, 1_800, 300

_CONFIG: dict[str, Any] = {
    "name": NAME,
    "data": {
        "interactions": {
            "columns": {"user": "user", "item": "item", "timestamp": "time", "rating": "rating"},
            "positive_at_least": 4.0,
        },
        "items": {
            "columns": {"item": "id", "title": "name"},
        },
        "eval_share": 0.2,
    },
    "model": {"dim": 8, "feature_dim": 4, "history": 5, "widths": [16]},
    "train": {"batch_size": 32, "epochs": 3, "checkpoint": {"every_steps": 10}},
    "evaluate": {"k": [5, 10], "baselines": [], "resamples": 100},
    "bless": {
        "metric": "auc",
        "at_least": 0.01,
        "over": {},
        "over_blessed": 0.0,
        "over_strongest": 0.0,
        "sure_loss": "allow",
    },
    "export": {"k": 10},
    "push": {"keep": 3},
}


def write_world(folder: Path, *, features: bool = False) -> Path:
    """Writes the data of the first night, and the config; returns the config's path.

    Args:
        folder: Where to.
        features: Whether the items have one, and so Transform a part, which takes as long
            as all other steps before the training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_events(folder / "ratings-1.csv", _EVENTS, 0, 50)
    titles = [
        f'i{i:02},"Film, No. {i}",{"comedy|drama" if i % 2 else "drama"}' for i in range(_ITEMS)
    ]
    (folder / "films.csv").write_text("\n".join(["id,name,genres", *titles]) + "\n")
    config = json.loads(json.dumps(_CONFIG))
    config["root"] = str(folder / "root")
    if features:
        genres = {"name": "genres", "column": "genres", "kind": "categories"}
        config["data"]["items"]["features"] = [genres]
    config["data"]["interactions"]["files"] = str(folder / "ratings-*.csv")
    config["data"]["items"]["files"] = str(folder / "films.csv")
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def write_second_night(folder: Path) -> None:
    """Writes the data that the second night finds beside those of the first."""
    _write_events(folder / "ratings-2.csv", _NEW_EVENTS, 50, 55)


def _write_events(file: Path, n: int, first_day: int, last_day: int) -> None:
    chance = random.Random(first_day)
    rows: set[tuple[str, str, int, int]] = set()
    while len(rows) < n:
        user = chance.randrange(_USERS)
        item = chance.randrange(_ITEMS // 2) + (user % 2) * (_ITEMS // 2)
        time = 10**9 + chance.randrange(first_day * _DAY_S, last_day * _DAY_S)
        rows.add((f"u{user:02}", f"i{item:02}", chance.choice([3, 4, 5]), time))
    lines = [",".join(map(str, row)) for row in sorted(rows)]
    file.write_text("\n".join(["user,item,rating,time", *lines]) + "\n")
