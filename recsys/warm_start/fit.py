"""Whether a model of today's config and data is what the earlier one is, so that it can go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.config import TrainStage
from recsys.errors import UsageError
from recsys.model import ModelSpec, TowerInputs
from recsys.warm_start.base import Base
from recsys.warm_start.token_sources import kind_of

CHANGED = "R390"
"""Code of the error that the model is another one than the earlier one."""

# What training changes by, and no weight or vector depends on.
_MAY_CHANGE = {
    "temperature",
    "id_dropout",
    "history_dropout",
    "new_user_share",
    "dropout",
    "init_stddev",
    "user_init_stddev",
    "table_placement",
    "sequence",
}
_SEQUENCE_MAY_CHANGE = {"dropout"}
_OPTIMIZERS = ("table_optimizer", "tower_optimizer")


def differences(base: Base, stage: TrainStage, inputs: TowerInputs) -> list[str]:
    """Returns what keeps a training from going on from `base`, each as `what: then → now`.

    Args:
        base: The earlier model.
        stage: The model and the training loop now.
        inputs: What is known of users and items now.
    """
    before = base.read_inputs()
    return [
        *_of_config(base.spec, stage),
        *_of_optimizers(base.stage, stage),
        *_of_hash_rows(before, inputs),
        *_of_features(before, inputs),
    ]


def refused(folder: Path, found: list[str]) -> UsageError:
    """Returns what to say of a model that differs by `found`."""
    return UsageError(
        CHANGED,
        f"The model in {str(folder)!r} can only be gone on from by one like it;"
        f" {len(found)} of its traits changed: {'; '.join(found)}.",
        "Change that back; or train from the beginning, with warm_start.changed=cold, or once"
        " with warm_start=null.",
    )


def _of_config(spec: ModelSpec, stage: TrainStage) -> Iterator[str]:
    before, now = spec.config.model_dump(mode="json"), stage.model.model_dump(mode="json")
    yield from _changed("model", before, now, _MAY_CHANGE)
    if now["pooling"] == before["pooling"] == "sequence":
        # `null` is the width of the vectors.
        for part in (before, now):
            part["sequence"]["width"] = part["sequence"]["width"] or part["dim"]
        yield from _changed(
            "model.sequence", before["sequence"], now["sequence"], _SEQUENCE_MAY_CHANGE
        )


def _changed(
    prefix: str, before: dict[str, Any], now: dict[str, Any], left_out: set[str]
) -> Iterator[str]:
    for name in now:
        if name not in left_out and before.get(name) != now[name]:
            yield f"{prefix}.{name}: {before.get(name)} → {now[name]}"


def _of_optimizers(before: TrainStage, now: TrainStage) -> Iterator[str]:
    for name in _OPTIMIZERS:
        then, today = getattr(before.train, name), getattr(now.train, name)
        if then != today:
            yield f"train.{name}: {then} → {today}"


def _of_hash_rows(before: TowerInputs, now: TowerInputs) -> Iterator[str]:
    for side in ("users", "items"):
        then, today = (getattr(known, side).config.hash_buckets for known in (before, now))
        if then != today:
            yield f"data.vocabulary.{side}.hash_buckets: {then} → {today}"


def _of_features(before: TowerInputs, now: TowerInputs) -> Iterator[str]:
    pairs = (
        ("items", before.catalogue.features, now.catalogue.features),
        ("users", before.user_features, now.user_features),
    )
    for side, then, today in pairs:
        names = [
            ", ".join(feature.name for feature in features) or "none" for features in (then, today)
        ]
        if names[0] != names[1]:
            yield f"features of {side}: {names[0]} → {names[1]}"
            continue
        for old, new in zip(then, today, strict=True):
            kinds = kind_of(old), kind_of(new)
            if kinds[0] != kinds[1]:
                yield f"tokens of {new.name}: {kinds[0]} → {kinds[1]}"
            elif kinds[0] == "hashed" and old.rows != new.rows:
                yield f"hash rows of {new.name}: {old.rows - 1} → {new.rows - 1}"
