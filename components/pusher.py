"""Pusher: a blessed bundle becomes the next version of the serving folder."""

import json
from pathlib import Path

from absl import logging
from pydantic import PositiveInt
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import ModelBlessing, PushedModel

from components.artifacts import ServingBundle
from recsys import bundle as bundles
from recsys.config import Strict

DESTINATION = "pushed_destination"
"""Custom property of a pushed model: the folder of its version."""


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
    """Publishes a blessed bundle; a refused one leaves what is served as it is.

    Args:
        bundle: The bundle.
        blessing: The evaluator's verdict.
        pushed: `pushed.json` and the properties that TFX's own Pusher sets.
        config: `PushTarget` as canonical JSON.
        code: Fingerprint of the code.
    """
    del code
    target = PushTarget.model_validate_json(config)
    destination = None
    if blessing.get_int_custom_property("blessed") == 1:
        path = bundles.publish(Path(bundle.uri), Path(target.serving_root), target.keep)
        destination = str(path)
        pushed.set_string_custom_property(DESTINATION, destination)
        pushed.set_string_custom_property("pushed_version", path.name)
    else:
        logging.warning("The model was not blessed: nothing is pushed.")
    pushed.set_int_custom_property("pushed", int(destination is not None))
    (Path(pushed.uri) / "pushed.json").write_text(json.dumps({"destination": destination}) + "\n")
