"""Pusher: a blessed bundle becomes the next version of the serving folder."""

import json
from pathlib import Path

from absl import logging
from pydantic import PositiveInt
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import ModelBlessing, PushedModel

from components.artifacts import ServingBundle
from components.metadata import CURRENT_MODEL, DESTINATION, WITHDRAWN
from recsys.bundles.publishing import WithdrawnError, publish
from recsys.config import Strict


class PushTarget(Strict):
    """The part of the config that decides where a bundle goes."""

    serving_root: str
    """Folder of the versions of one model."""
    keep: PositiveInt
    """Newest versions kept there."""


@component
def Pusher(
    bundle: InputArtifact[ServingBundle],
    blessing: InputArtifact[ModelBlessing],
    pushed: OutputArtifact[PushedModel],
    config: Parameter[str],
    code: Parameter[str],
) -> None:
    """Publishes a blessed bundle; after a refused one the served version stays.

    A bundle that was rolled back is not published again, so the next run doesn't undo a rollback.

    Args:
        bundle: The bundle.
        blessing: The evaluator's verdict.
        pushed: `pushed.json`, with the reason where nothing was pushed, and the
            properties that TFX's own Pusher sets.
        config: `PushTarget` as canonical JSON.
        code: Fingerprint of the code.
    """
    del code
    target = PushTarget.model_validate_json(config)
    destination, reason = None, None
    if blessing.get_int_custom_property("blessed") == 1:
        try:
            destination = publish(Path(bundle.uri), Path(target.serving_root), target.keep)
        except WithdrawnError as error:
            reason = str(error)
            pushed.set_int_custom_property(WITHDRAWN, 1)
    else:
        reason = "The model was not blessed."
    if destination is None:
        logging.warning("Nothing is pushed. %s", reason)
    else:
        pushed.set_string_custom_property(DESTINATION, str(destination))
        pushed.set_string_custom_property("pushed_version", destination.name)
        model = blessing.get_int_custom_property(CURRENT_MODEL)
        pushed.set_int_custom_property(CURRENT_MODEL, model)
    pushed.set_int_custom_property("pushed", int(destination is not None))
    content = {"destination": None if destination is None else str(destination), "reason": reason}
    (Path(pushed.uri) / "pushed.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
