"""Removed config keys, with their replacements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CONFIG: Mapping[str, str] = {
    "beam.tfx_args": "Remove it: beam.runner decides which steps run on the engine.",
    "beam_args": "Write beam: {args: [...]}.",
    "bless.over_popularity": "Write bless: {over: {popularity: 1.0}}.",
    "data.interactions.context": "Write data.interactions.features: [{name: ..., column: ...,"
    " kind: category}], see docs/features.md.",
    "data.interactions.query": "Write data.interactions.format: {type: sql, driver: bigquery,"
    " query: ...}, see docs/sources.md.",
    "evaluate.mask_seen": "Write repeats: exclude, or repeats: include.",
    "launcher=kubernetes": "Apply a manifest of deploy/kubernetes, or write launcher: {kind: ray}.",
    "model.item_age": "Remove it; train.half_life weighs new events more.",
    "model.pooling=hstu": "Write sasrec or ligr.",
    "model.pooling=sequence": "Write sasrec.",
    "model.sequence": "Write model.pooling: {type: sasrec, layers: ...}.",
    "model.user_gate": "Remove it: the embedding of the user and the history are added.",
    "model.pooling.event_kind": "Write data.interactions.features: [{name: kind, column: ...,"
    " kind: category, outcome: true}].",
    "model.pooling.event_weight": "Write data.interactions.features: [{name: amount, column: ...,"
    " kind: price, outcome: true}].",
    "model.pooling.fact_dropout": "Write model.attribute_dropout.",
    "train.hard_negatives": "Write train.uniform_negatives.",
    "train.loss.decoupled": "Remove it.",
    "train.loss=bilateral_softmax": "Write sampled_softmax.",
    "train.loss=cosine_contrastive": "Write sampled_softmax.",
    **{
        f"data.{side}.features.*.{option}": cure
        for side in ("interactions", "items", "users")
        for option, cure in (
            ("as=piecewise", "Write as: buckets, or as: dense."),
            ("scale=normal", "Write scale: log, or as: buckets."),
        )
    },
    "train.validation.like=popular": "Write like: random; or name a part that is drawn like the"
    " test part by data.interactions.valid_parts or valid_files.",
    "train.validation.popularity": "Remove it: validation draws uniformly.",
}
"""Cure by path of a key, `a.b`, or of a value, `a.b=name`.

`a.b=name` is both `b: name` and `b: {type: name}`. `*` in a path is any item of a list.
"""


def removed_key(raw: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the path and the cure of a removed key or value in a raw config, if there is one."""
    return next(((path, CONFIG[path]) for path in _paths(raw, "") if path in CONFIG), None)


def _paths(raw: Any, path: str) -> Iterator[str]:
    """Yields the paths of all keys and names in a raw config."""
    if isinstance(raw, str):
        yield f"{path}={raw}"
    parts = list(raw.items()) if isinstance(raw, dict) else []
    if isinstance(raw, list):
        parts = [("*", part) for part in raw]
    for key, part in parts:
        if key in ("type", "kind") and isinstance(part, str):
            yield f"{path}={part}"
        below = f"{path}.{key}" if path else str(key)
        yield below
        yield from _paths(part, below)
