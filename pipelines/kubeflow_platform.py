"""Vertex AI and Kubeflow as a platform: what they can't do is refused before anything is compiled.

Each step is a container. Its artifacts have `gs://` addresses, and its files lie under the
bucket's mount, `/gcs/BUCKET/…`, which Vertex AI puts into every container; see
`pipelines.kubeflow_entrypoint`. There is no ML Metadata to ask, only a query for the
latest blessed model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import (
    LatestBlessedModelStrategy,
)
from tfx.types import Artifact, BaseChannel, Channel
from tfx.types.standard_artifacts import Model, ModelBlessing

from recsys.config import Config, InteractionsConfig, SourceConfig
from recsys.config.operation import KeepConfig
from recsys.data.sources.files import is_remote, patterns
from recsys.errors import UsageError

BUCKET_SCHEME = "gs://"
MOUNT_VARIABLE = "RECSYS_GCS_MOUNT"
"""Environment variable: the folder of the mounted buckets, `/gcs` by default."""
OUR_TYPES = "recsys."
"""What the names of our artifact types start with there; TFX's own start with `tfx.`."""
_JOB_NAME = "{{$.pipeline_job_name}}"


class KubeflowPlatform:
    """Kubeflow Pipelines v2, as Vertex AI runs them."""

    run_id = _JOB_NAME
    # What is in the raw files is known in the run alone, so nothing may be used again.
    is_cached = False

    def artifact_root(self, folder: Path) -> str:
        """Returns the address in the bucket: the platform knows nothing of the mount."""
        return addressed(str(folder))

    def digest(self, of_now: Callable[[], str]) -> str:
        """Returns the name of the job: the files are read in the run, and by each run anew."""
        del of_now
        return _JOB_NAME

    def schema_file(self, file: Path, root: Path) -> Path:
        """Returns the file itself; nothing is cached, so nothing has to be pinned."""
        del root
        return file

    def earlier_statistics(self, what: str, current: BaseChannel) -> None:
        """Returns None: by its type alone one kind of statistics can't be told from another."""
        del what, current

    def previous(
        self, name: str, kind: type[Artifact], parameters: dict[str, str], **inputs: BaseChannel
    ) -> None:
        """Returns None: types of our own can't be asked for."""
        del name, kind, parameters, inputs

    def latest_blessed(self, current: BaseChannel) -> Resolver:
        """Returns the node that takes the latest blessed model; it looks before `current` is."""
        del current
        return _latest_blessed("LatestBlessed")

    def warm_base(self, parameters: dict[str, str], **inputs: BaseChannel) -> Resolver:
        """Returns the node that takes the latest blessed model."""
        del parameters, inputs
        return _latest_blessed("WarmBase")


def _latest_blessed(name: str) -> Resolver:
    return Resolver(
        strategy_class=LatestBlessedModelStrategy,
        model=Channel(type=Model),
        model_blessing=Channel(type=ModelBlessing),
    ).with_id(name)


def mounted(address: str) -> str:
    """Returns the path under the mount of a `gs://` address, and anything else as it is."""
    if not address.startswith(BUCKET_SCHEME):
        return address
    folder = os.environ.get(MOUNT_VARIABLE, "/gcs")
    return f"{folder}/{address.removeprefix(BUCKET_SCHEME)}"


def addressed(path: str) -> str:
    """Returns the `gs://` address of a path under the mount, and anything else as it is."""
    folder = os.environ.get(MOUNT_VARIABLE, "/gcs") + "/"
    return BUCKET_SCHEME + path.removeprefix(folder) if path.startswith(folder) else path


def for_kubeflow(config: Config) -> Config:
    """Returns `config` as the containers read it: with the paths of the mount.

    Raises:
        UsageError: It asks for what can't be done there.
    """
    for broken, cure, received in _refused(config):
        raise UsageError("R617", f"On Kubeflow {broken}.", cure, received)
    raw = config.model_dump(mode="json")
    raw["root"] = mounted(config.root)
    gate = raw["data"]["gate"]
    if gate["schema_dir"] is not None:
        gate["schema_dir"] = mounted(gate["schema_dir"])
    for what in _sources(config):
        files = raw["data"][what]["files"]
        several = isinstance(files, list)
        paths = [mounted(one) for one in (files if several else [files])]
        raw["data"][what]["files"] = paths if several else paths[0]
    return Config.model_validate(raw, strict=False)


def _sources(config: Config) -> dict[str, SourceConfig]:
    data = config.data
    sides = {"interactions": data.interactions, "items": data.items, "users": data.users}
    return {what: source for what, source in sides.items() if source is not None}


_Refusal = tuple[str, str, object]
"""What can't be done, what helps, and what was received."""


def _refused(config: Config) -> Iterator[_Refusal]:
    """Yields what of `config` can't be done there."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", config.name):
        yield (
            "`name` may hold small letters, digits and hyphens alone",
            "Write - in the place of _.",
            config.name,
        )
    yield from _refused_places(config)
    yield from _refused_memory(config)
    yield from _refused_care(config)


def _refused_places(config: Config) -> Iterator[_Refusal]:
    """Yields places that a container doesn't see."""
    if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]+/.+", config.root):
        yield (
            "`root` must be a folder of a bucket: a container's disk is gone when it ends",
            "Write --set root=gs://BUCKET/FOLDER.",
            config.root,
        )
    for what, source in _sources(config).items():
        held_out = source.eval_files if isinstance(source, InteractionsConfig) else ()
        for pattern in (*patterns(source.files), *patterns(held_out)):
            if not is_remote(pattern):
                yield (
                    f"`data.{what}.files` must be URLs: a container sees no file of this machine",
                    "Copy them to the bucket, and name them gs://BUCKET/….",
                    pattern,
                )
    schemas = config.data.gate.schema_dir
    if schemas is not None and not schemas.startswith(BUCKET_SCHEME):
        yield (
            "`data.gate.schema_dir` must be a folder of a bucket, or null",
            "Copy the schemas to the bucket, and name that folder.",
            schemas,
        )


def _refused_memory(config: Config) -> Iterator[_Refusal]:
    """Yields what would have to be asked of ML Metadata."""
    for key in ("max_drift", "max_skew"):
        limit = getattr(config.data.gate, key)
        if limit is not None:
            yield (
                f"`data.gate.{key}` must be null: what earlier data looked like is asked of ML"
                " Metadata, which isn't there",
                f"Write --set data.gate.{key}=null; the schema, the anomalies and the rejected"
                " rows are judged all the same.",
                limit,
            )
    if config.metadata.mysql is not None:
        yield (
            "`metadata.mysql` must be null: the platform keeps its own metadata",
            "Write --set metadata.mysql=null.",
            config.metadata.mysql.host,
        )


def _refused_care(config: Config) -> Iterator[_Refusal]:
    """Yields what our own runner does after a run, and nobody does there."""
    if config.keep != KeepConfig():
        yield (
            "`keep` must be left out: our runner, which clears up after a run, isn't there",
            "Give the bucket a lifecycle rule in its place.",
            config.keep.model_dump(exclude_defaults=True),
        )
    if config.notify.webhook_env is not None:
        yield (
            "`notify.webhook_env` must be null: our runner, which tells of a run, isn't there",
            "Let the platform tell of its jobs.",
            config.notify.webhook_env,
        )
