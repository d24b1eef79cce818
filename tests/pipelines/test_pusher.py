"""The Pusher publishes blessed bundles, and doesn't publish rolled-back ones again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tfx", reason="needs the extra `pipeline`")

from tfx.types.standard_artifacts import Model, ModelBlessing, PushedModel

from components.artifacts import ServingBundle
from components.metadata import DESTINATION, WITHDRAWN
from components.model import Pusher, PushTarget
from components.resolvers import LatestBlessedStrategy
from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import latest, rollback
from recsys.config import canonical_json

pytestmark = pytest.mark.pipeline


def make_bundle(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / "data").write_text(content)
    bundles.write_manifest(folder, {})
    return folder


def push(
    bundle: Path, root: Path, folder: Path, *, blessed: bool = True, model: int = 7
) -> PushedModel:
    given, blessing, pushed = ServingBundle(), ModelBlessing(), PushedModel()
    given.uri, pushed.uri = str(bundle), str(folder)
    folder.mkdir()
    blessing.set_int_custom_property("blessed", int(blessed))
    blessing.set_int_custom_property("current_model_id", model)
    target = canonical_json(PushTarget(serving_root=str(root), keep=3))
    Pusher.EXECUTOR_SPEC.executor_class().Do(
        {"bundle": [given], "blessing": [blessing]},
        {"pushed": [pushed]},
        {"config": target, "code": "c"},
    )
    return pushed


def told(folder: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = json.loads((folder / "pushed.json").read_text())
    return found


def test_a_blessed_bundle_is_published_and_another_is_not(tmp_path):
    root, bundle = tmp_path / "serving", make_bundle(tmp_path / "a", "a")
    refused = push(bundle, root, tmp_path / "p0", blessed=False)
    assert refused.get_int_custom_property("pushed") == 0
    assert told(tmp_path / "p0") == {"destination": None, "reason": "The model was not blessed."}
    pushed = push(bundle, root, tmp_path / "p1")
    assert pushed.get_int_custom_property("pushed") == 1
    assert pushed.get_string_custom_property(DESTINATION) == str(root / "1")
    assert told(tmp_path / "p1") == {"destination": str(root / "1"), "reason": None}


def test_what_was_rolled_back_is_not_pushed_again_and_the_run_goes_on(tmp_path):
    root = tmp_path / "serving"
    good, bad = (make_bundle(tmp_path / name, name) for name in "ab")
    push(good, root, tmp_path / "p1")
    push(bad, root, tmp_path / "p2")
    rollback(root)
    again = push(bad, root, tmp_path / "p3")
    assert latest(root).name == "1"
    assert again.get_int_custom_property("pushed") == 0
    assert again.get_int_custom_property(WITHDRAWN) == 1
    found = told(tmp_path / "p3")
    assert found["destination"] is None
    assert "R513" in str(found["reason"])
    rollback(root, 2)
    back = push(bad, root, tmp_path / "p4")
    assert back.get_string_custom_property(DESTINATION) == str(root / "2")


def blessed(number: int) -> tuple[Model, ModelBlessing]:
    model, blessing = Model(), ModelBlessing()
    model.id = number
    blessing.set_int_custom_property("blessed", 1)
    blessing.set_int_custom_property("current_model_id", number)
    return model, blessing


def last_good(root: Path, pushed: list[PushedModel]) -> list[int]:
    models, blessings = zip(*map(blessed, (1, 2, 3)), strict=True)
    given = {"model": models, "blessing": blessings, "pushed": pushed, "current": [models[2]]}
    found = LatestBlessedStrategy().resolve_artifacts(
        None,  # type: ignore[arg-type]
        {key: list(some) for key, some in given.items()},
    )
    return [model.id for model in found["model"]]


def test_a_new_model_is_not_compared_with_one_that_was_rolled_back(tmp_path):
    root = tmp_path / "serving"
    pushed = [
        push(make_bundle(tmp_path / name, name), root, tmp_path / f"p{name}", model=model)
        for name, model in (("a", 1), ("b", 2))
    ]
    refused = push(tmp_path / "a", root, tmp_path / "r", blessed=False, model=3)
    pushed.append(refused)
    assert last_good(root, pushed) == [2]
    rollback(root)
    assert last_good(root, pushed) == [1]
    rollback(root, 2)
    assert last_good(root, pushed) == [2]
