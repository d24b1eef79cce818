"""What ML Metadata knows of a bundle: the steps behind it, and the models behind its model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.bundles.bundle import MANIFEST
from recsys.house.known import Artifact, Execution, Known

_BUNDLE, _PUSHED = "ServingBundle", "PushedModel"
_DESTINATION = "pushed_destination"
_LONGEST_CHAIN = 1000


def find_bundle(known: Known, bundle: Path) -> int | None:
    """Returns the id of the artifact that a bundle is, or is a copy of; None if it isn't known.

    Args:
        known: All that ML Metadata knows of a pipeline.
        bundle: A bundle of the exporter, or a version that was pushed.
    """
    where = bundle.resolve()
    bundles = [one for one in known.artifacts.values() if one.kind == _BUNDLE]
    for one in bundles:
        if one.path.resolve() == where:
            return one.id
    for push in known.artifacts.values():
        if push.kind == _PUSHED and Path(push.texts.get(_DESTINATION, "")).resolve() == where:
            maker = known.maker(push.id)
            if maker is not None and maker.inputs.get("bundle"):
                return maker.inputs["bundle"][0]
    manifest = (bundle / MANIFEST).read_bytes()
    return next((one.id for one in bundles if _is_same(one.path, manifest)), None)


def _is_same(folder: Path, manifest: bytes) -> bool:
    try:
        return (folder / MANIFEST).read_bytes() == manifest
    except OSError:
        return False


def trace(known: Known, bundle: int) -> dict[str, Any]:
    """Returns where the bundle with this id comes from.

    Returns:
        `steps`: each step behind it, the first one first, with `step`, `execution`,
        `run`, `code`, `files_digest` and `outputs`; `models`: its model, then those that
        each training went on from, with `artifact`, `path`, `run`, `is_there`.
    """
    steps = sorted(_behind(known, bundle), key=lambda one: one.id)
    return {"steps": [_step(known, one) for one in steps], "models": list(_models(known, steps))}


def _behind(known: Known, bundle: int) -> list[Execution]:
    """Returns the executions that a bundle needed; what a training went on from is no part."""
    found: dict[int, Execution] = {}
    waiting = [bundle]
    while waiting:
        maker = known.maker(waiting.pop())
        if maker is None or maker.id in found:
            continue
        found[maker.id] = maker
        # What an earlier night made belongs to that night.
        earlier = ("base", "previous", "blessed_model", "accepted_statistics", "trained_statistics")
        waiting += [id_ for key, ids in maker.inputs.items() if key not in earlier for id_ in ids]
    return list(found.values())


def _step(known: Known, one: Execution) -> dict[str, Any]:
    outputs = [known.artifacts[id_] for ids in one.outputs.values() for id_ in ids
               if id_ in known.artifacts]  # fmt: skip
    return {
        "step": one.step,
        "execution": one.id,
        "run": one.run,
        "code": one.parameters.get("code"),
        "files_digest": one.parameters.get("files_digest"),
        "outputs": [_artifact(output) for output in outputs],
    }


def _models(known: Known, steps: list[Execution]) -> Iterator[dict[str, Any]]:
    training = next((one for one in steps if one.step == "Trainer"), None)
    for _ in range(_LONGEST_CHAIN):
        if training is None:
            return
        (model,) = training.outputs["model"]
        if model in known.artifacts:
            yield {**_artifact(known.artifacts[model]), "run": training.run}
        base = next(iter(training.inputs.get("base", ())), None)
        training = None if base is None else known.maker(base)


def _artifact(one: Artifact) -> dict[str, Any]:
    return {
        "artifact": one.id,
        "kind": one.kind,
        "path": str(one.path),
        "is_there": one.state == "live" and one.path.is_dir(),
    }
