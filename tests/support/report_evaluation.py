"""An `evaluation.json` of format 2 as a run on MovieLens small might leave it."""

from __future__ import annotations

import math
from typing import Any

KS = (1, 5, 10, 20, 50, 100)
MODEL, BLESSED = "model", "blessed_model"
STRENGTH = {MODEL: 1.0, "popularity": 0.664, "recent_popularity": 0.71, "item_knn": 0.934,
            "ials": 0.905, BLESSED: 0.982}  # fmt: skip
"""Recall of each system relative to the model."""
TITLES = [
    "Matrix, The (1999)", "Memento (2000)", "Fight Club (1999)", "Se7en (a.k.a. Seven) (1995)",
    "Toy Story (1995)", "Monsters, Inc. (2001)", "Finding Nemo (2003)", "Shrek (2001)",
    "Pulp Fiction (1994)", "Reservoir Dogs (1992)", "Kill Bill: Vol. 1 (2003)",
    "Jackie Brown (1997)", "Alien (1979)", "Aliens (1986)", "Terminator, The (1984)",
    "Blade Runner (1982)", "Titanic (1997)", "Notting Hill (1999)", "Amelie (2001)",
    "Lost in Translation (2003)", "Godfather, The (1972)", "Goodfellas (1990)", "Casino (1995)",
    "Scarface (1983)",
]  # fmt: skip


def metrics(system: str) -> dict[str, float]:
    """Returns every metric of a system."""
    strength, shown = STRENGTH[system], 0.1 * STRENGTH[system] ** 4
    found = {"mrr": 0.0586 * strength, "auc": 0.5 + 0.38 * strength}
    for k in KS:
        recall = strength * 0.4015 * (k / 100) ** 0.5
        found |= {f"recall@{k}": recall, f"precision@{k}": recall / k, f"hit_rate@{k}": recall}
        found |= {f"ndcg@{k}": recall * (0.5 + 0.5 / k), f"map@{k}": recall * (0.35 + 0.65 / k)}
        found |= {f"coverage@{k}": shown * k**0.5, f"gini@{k}": 0.998 - shown / 2}
        found |= {f"novelty@{k}": 9.1 + shown, f"diversity@{k}": 0.41 + shown}
        found |= {f"popularity_lift@{k}": 2.4 - 9 * shown}
    return {name: round(value, 5) for name, value in found.items()}


_DESCRIBED = ("coverage", "gini", "novelty", "diversity", "popularity_lift")
ACCURACY = [name for name in metrics(MODEL) if not name.startswith(_DESCRIBED)]


def _difference(model: float, other: float, margin: float) -> dict[str, Any]:
    relative = round(model / other - 1, 5)
    return {"relative": relative, "interval": [relative - margin, relative + margin]}


def slice_of(kind: str, name: str, users: int, factor: float, of: str) -> dict[str, Any]:
    """Returns a slice on which the model is `factor` times as good."""
    figures = {system: {"recall@10": metrics(system)["recall@10"]} for system in STRENGTH}
    model = round(figures.pop(MODEL)["recall@10"] * factor, 5)
    margin = 1.2 / math.sqrt(users) * (1 + factor)
    return {
        "kind": kind, "name": name, "of": of, "users": users, "queries": users * 43,
        "positives": users * 44, "is_small": users < 50, "metrics": {"recall@10": model},
        "comparisons": {s: _difference(model, f["recall@10"], margin) for s, f in figures.items()},
        BLESSED: figures.pop(BLESSED), "baselines": figures,
    }  # fmt: skip


def _exposure() -> dict[str, Any]:
    points = [[int(260 / i**0.62), i * 37 % 90 if i < 300 else 0] for i in range(1, 1500)]
    events, lists = (sum(axis) for axis in zip(*points, strict=True))
    bins = []
    for low, high in [(2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 511)]:
        held = [point for point in points if low <= point[0] <= high]
        trained, shown = (sum(axis) for axis in zip(*held, strict=True))
        bins.append({"from": low, "to": high, "items": len(held),
                     "training_share": trained / events,
                     "recommended_share": shown / lists})  # fmt: skip
    never = sum(not shown for _, shown in points)
    return {"k": 10, "items": len(points), "never": never, "bins": bins}


def _rules() -> list[dict[str, Any]]:
    value = metrics(MODEL)["recall@10"]
    floor = {"against": "floor", "value": value, "least": 0.05, "interval": [0.1098, 0.1439]}
    thresholds = {"popularity": 1.1, "item_knn": 1.0, BLESSED: 0.9}
    others = [
        {"against": key, "least": least, **_difference(value, metrics(key)["recall@10"], 0.06)}
        for key, least in thresholds.items()
    ]
    text = "recall@10 is at least what is required"
    return [{"metric": "recall@10", "passed": True, "text": text, **r} for r in (floor, *others)]


def _items(start: int, stop: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": str(i % 24 + 1), "title": TITLES[i % 24], **more} for i in range(start, stop)]


def _example(user: str, start: int, length: int, hits: set[int]) -> dict[str, Any]:
    lists = {"recommended": (12, 0.93), "blessed_recommended": (10, 0.9)}
    return {"user_id": user, "history": _items(start, start + length)} | {
        name: [
            {**item, "score": score - 0.027 * i, "held_out": first + i in hits}
            for i, item in enumerate(_items(start + first, start + first + 10))
        ]
        for name, (first, score) in lists.items()
    }


def evaluation() -> dict[str, Any]:
    """Returns the evaluation of a blessed model with every baseline."""
    model = metrics(MODEL)
    others = {system: metrics(system) for system in STRENGTH if system != MODEL}
    comparisons = {
        system: {name: _difference(model[name], figures[name], 0.06) for name in ACCURACY}
        for system, figures in others.items()
    }
    slices = [
        ("user activity", "users known to training", 28, 1.21, "queries"),
        ("user activity", "users new since the cut", 52, 0.94, "queries"),
        ("item popularity", "items of the head", 79, 1.9, "positives"),
        ("item popularity", "items of the tail", 64, 0.31, "positives"),
        ("genres", "Film-Noir", 9, 4.4, "positives"),
    ]
    return {
        "format": 2, "query": "each_moment", "repeats": "exclude", "sampled_negatives": None,
        "confidence": 0.95, "resamples": 2000, "small_slice": 50, "users": 80,
        "users_held_out": 80, "queries": 5051, "positives": 5056, "unknown_positives": 12,
        "candidates": 9742, "left_out_queries": 0, "metrics": model,
        "intervals": {name: [0.76 * model[name], 1.24 * model[name]] for name in ACCURACY},
        BLESSED: others.pop(BLESSED), "baselines": others, "baselines_left_out": {},
        "comparisons": comparisons, "slices": [slice_of(*one) for one in slices],
        "at_cut": {
            "users": 80, "queries": 80, "positives": 5056,
            "metrics": {"recall@10": 0.0412, "ndcg@10": 0.1811, "mrr": 0.3021},
            "baselines": {"popularity": {"recall@10": 0.0301, "ndcg@10": 0.1502, "mrr": 0.3118}},
        },
        "exposure": _exposure(),
        "verdict": {"blessed": True, "sentence": "+1.8 % over the last blessed model; blessed",
                    "reasons": ["above the floor"], "metric": "recall@10", "rules": _rules()},
        "examples": [_example("1", 0, 12, {13, 17}), _example("42", 4, 9, {12}),
                     _example("599", 12, 4, set())],
        "unknown_report_users": [],
        "seconds": {MODEL: 3.1, "popularity": 0.6, BLESSED: 3.0},
    }  # fmt: skip
