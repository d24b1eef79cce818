"""Made-up impressions with clicks and purchases, as a ranker's data folder."""

from typing import NamedTuple

import numpy as np
from split_worlds import write

import recsys
from recsys.config import DataConfig

DAY, START = 86_400, 19_783 * 86_400


class Shown(NamedTuple):
    """A row: an item that was shown to a user."""

    user: str
    item: str
    time: int
    click: int
    buy: int
    impression: str
    position: int
    device: str
    weight: float


def shown(n_users=40, n_items=20, n=6, width=4, seed=0):
    """Returns rows of impressions; taste, the item and the device decide on clicks."""
    rng = np.random.default_rng(seed)
    taste, quality = rng.normal(size=n_users), rng.normal(size=n_items)
    rows = []
    for user in range(n_users):
        for number in range(n):
            time = START + int(rng.integers(40 * DAY))
            device = str(rng.choice(["phone", "tv"]))
            items = rng.choice(n_items, width, replace=False).tolist()
            for position, item in enumerate(items):
                logit = taste[user] + 2 * quality[item] + (device == "tv") - 0.3 * position
                click = int(rng.random() < 1 / (1 + np.exp(-logit)))
                buy = click * int(rng.random() < 0.5)
                rows.append(
                    Shown(
                        f"u{user}", f"i{item}", time, click, buy, f"s{user}-{number}",
                        position, device, 1.0 + position % 2,
                    )
                )  # fmt: skip
    return rows


LABELS = {
    "click": {"column": "click", "at_least": 1},
    "buy": {"column": "buy", "at_least": 1, "given": "click"},
}


def data_config(file, **more):
    """Returns the config of a file of rows."""
    columns = {
        "user": "user",
        "item": "item",
        "timestamp": "time",
        "impression": "impression",
        "position": "position",
        "weight": "weight",
    }
    interactions = {
        "files": str(file),
        "columns": columns,
        "labels": LABELS,
        "positive": "click",
        "features": [{"name": "device", "column": "device", "kind": "category"}],
        "sampled": {"column": "click", "rates": {"0": 0.5}},
        **more,
    }
    return DataConfig.model_validate(
        {"interactions": interactions, "eval_share": 0.25}, strict=False
    )


def ingested(folder, rows, **more):
    """Writes and ingests rows; returns the opened data folder."""
    write(folder / "rows.csv", rows, ",".join(Shown._fields))
    return recsys.ingest(data_config(folder / "rows.csv", **more), folder / "data", progress=False)
