"""Compiles the pipeline for Kubeflow Pipelines v2 and Vertex AI, without any server.

    python -m pipelines.kubeflow CONFIG --image IMAGE [--set path=value …] [--out FILE]

`CONFIG` is the config of any run, with `root` and the files in a bucket (by `--set`). Each step is
a container. Its artifacts have `gs://` URIs, and its files are under the bucket's mount,
`/gcs/BUCKET/…`, which Vertex AI adds to every container; see `pipelines.kubeflow_entrypoint`. ML
Metadata can't be queried, except for the latest blessed model. docs/schedule/kubeflow.md describes
the use of the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import (
    LatestBlessedModelStrategy,
)
from tfx.types import BaseChannel, Channel
from tfx.types.standard_artifacts import Model, ModelBlessing

from components import artifacts
from pipelines.kubeflow_entrypoint import BUCKET_SCHEME, OUR_TYPES, PLUGIN, addressed, mounted
from pipelines.retrieval_pipeline import Platform, create_pipeline
from recsys.config import Config, KeepConfig, SourceConfig
from recsys.config.load import load_config
from recsys.data.sources.source_files import patterns
from recsys.distributed.launchers import LocalLauncher
from recsys.errors import UsageError
from recsys.storage.bucket import is_url
from recsys.system.installation import install_extra
from recsys.system.process import stage_main

ENTRYPOINT = ("python", "-P", "-m", "pipelines.kubeflow_entrypoint")
"""Command of every container; it gives the executor paths in place of URIs."""
_FILE_KEYS = ("files", "eval_files", "valid_files")


class KubeflowPlatform(Platform):
    """Kubeflow Pipelines v2 on Vertex AI."""

    run_id = "{{$.pipeline_job_name}}"
    # The content of the raw files is known only in the run, so nothing may be cached.
    is_cached = False
    # The type alone doesn't distinguish the kinds of statistics, and our own can't be queried.
    has_history = False

    def artifact_root(self, folder: Path) -> str:
        """Returns the URI in the bucket; the platform doesn't know the mount."""
        return addressed(str(folder))

    def latest_blessed(self, current: BaseChannel) -> Resolver:
        """Returns the node of the latest blessed model, resolved before `current` exists."""
        del current
        return _latest_blessed("LatestBlessed")

    def warm_base(self, parameters: dict[str, str], **inputs: BaseChannel) -> Resolver:
        """Returns the node of the latest blessed model."""
        del parameters, inputs
        return _latest_blessed("WarmBase")


def _latest_blessed(name: str) -> Resolver:
    return Resolver(
        strategy_class=LatestBlessedModelStrategy,
        model=Channel(type=Model),
        model_blessing=Channel(type=ModelBlessing),
    ).with_id(name)


def for_kubeflow(config: Config) -> Config:
    """Returns `config` with paths under the mount, for the containers.

    Raises:
        UsageError: The config uses something that is not supported there.
    """
    for key, rule, cure, received in _refused(config):
        raise UsageError("R617", f"On Kubeflow `{key}` must {rule}.", cure, received)
    raw = config.model_dump(mode="json")
    raw["root"] = mounted(config.root)
    gate = raw["data"]["gate"]
    if gate["schema_dir"] is not None:
        gate["schema_dir"] = mounted(gate["schema_dir"])
    for what in _sources(config):
        source = raw["data"][what]
        for key in source.keys() & _FILE_KEYS:
            is_text = isinstance(source[key], str)
            paths = [mounted(file) for file in ([source[key]] if is_text else source[key])]
            source[key] = paths[0] if is_text else paths
    return Config.model_validate(raw, strict=False)


def _sources(config: Config) -> dict[str, SourceConfig]:
    return {"interactions": config.data.interactions, **config.data.sides}


def _refused(config: Config) -> Iterator[tuple[str, str, str, object]]:
    """Yields key, rule, cure and value of each unsupported part of `config`."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", config.name):
        rule = "contain only lower-case letters, digits and hyphens"
        yield "name", rule, "Write - in the place of _.", config.name
    if not re.fullmatch(r"gs://[a-z0-9][a-z0-9._-]+/.+", config.root):
        rule = "be a folder in a bucket: the disk of a container is temporary"
        yield "root", rule, "Write --set root=gs://BUCKET/FOLDER.", config.root
    for what, source in _sources(config).items():
        files = [getattr(source, key, ()) for key in _FILE_KEYS]
        for pattern in (pattern for named in files for pattern in patterns(named)):
            if not is_url(pattern):
                rule = "be URLs: a container can't read files of this machine"
                cure = "Copy them to the bucket, and name them gs://BUCKET/…."
                yield f"data.{what}.files", rule, cure, pattern
    gate = config.data.gate
    if gate.schema_dir is not None and not gate.schema_dir.startswith(BUCKET_SCHEME):
        cure = "Copy the schemas to the bucket, and name that folder."
        yield "data.gate.schema_dir", "be a folder of a bucket, or null", cure, gate.schema_dir
    mysql, webhook = config.metadata.mysql, config.notify.webhook_env
    earlier = "null: what earlier data looked like is asked of ML Metadata, which isn't there"
    for key, value, why in (
        ("data.gate.max_drift", gate.max_drift, earlier),
        ("data.gate.max_skew", gate.max_skew, earlier),
        ("data.forget", config.data.forget, "null: recsys forget reaches no bucket"),
        ("metadata.mysql", mysql and mysql.host, "null: the platform keeps its own metadata"),
        ("notify.webhook_env", webhook, "null: our runner, which sends it, isn't there"),
    ):
        if value is not None:
            yield key, f"be {why}", f"Write --set {key}=null.", value
    if config.launcher != LocalLauncher():
        rule = "be removed: the platform starts one container per step"
        cure = "Give the container more GPUs; one process takes all of them."
        yield "launcher", rule, cure, config.launcher.model_dump(mode="json")
    if config.keep != KeepConfig():
        rule = "be removed: the local runner, which cleans up after a run, is not used"
        cure = "Use a lifecycle rule of the bucket instead."
        yield "keep", rule, cure, config.keep.model_dump(exclude_defaults=True)


def compile_pipeline(config: Config, image: str, out: Path) -> dict[str, Any]:
    """Writes the job of `config` and returns it.

    Args:
        config: The whole config, with URIs of a bucket.
        image: Container image of all steps (deploy/Dockerfile), including plugins.
        out: File to write: a PipelineJob as `.json`, or its PipelineSpec as `.yaml`.

    Raises:
        UsageError: `kfp` is not installed, or the config uses something that is not supported
            there.
    """
    if importlib.util.find_spec("kfp") is None:
        rule = "Compiling for Kubeflow requires the package kfp."
        cure = f"{install_extra('kubeflow')} It needs Python 3.11."
        raise UsageError("R618", rule, cure)
    from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner as kubeflow

    command = [*ENTRYPOINT, *(f"{PLUGIN}{module}" for module in config.plugins)]
    runner = kubeflow.KubeflowV2DagRunner(
        config=kubeflow.KubeflowV2DagRunnerConfig(
            default_image=image, default_commands=command, use_pipeline_spec_2_1=True
        ),
        output_dir=str(out.resolve().parent),
        output_filename=out.name,
    )
    with _named_for_kubeflow():
        pipeline = create_pipeline(for_kubeflow(config), KubeflowPlatform())
        job: dict[str, Any] = runner.run(pipeline)
    return job


@contextmanager
def _named_for_kubeflow() -> Iterator[None]:
    """Gives our artifact types names in Kubeflow's form, `recsys.DeadLetters`.

    On this machine they keep the short names, under which ML Metadata has earlier artifacts.
    """
    own: list[Any] = [
        value
        for value in vars(artifacts).values()
        if isinstance(value, type) and value.__module__ == artifacts.__name__
    ]
    names = {kind: kind.TYPE_NAME for kind in own}
    try:
        for kind, name in names.items():
            kind.TYPE_NAME = f"{OUR_TYPES}{name}"
        yield
    finally:
        for kind, name in names.items():
            kind.TYPE_NAME = name


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Compiles by the command line, and returns the written content."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.kubeflow")
    parser.add_argument("config", type=Path, help="config file (YAML)")
    parser.add_argument("--image", required=True, help="container image of all steps")
    parser.add_argument("--out", type=Path, default=Path("pipeline.json"), help=".json or .yaml")
    parser.add_argument("--set", dest="overrides", metavar="path=value", action="append")
    options = parser.parse_args(arguments)
    config = load_config(options.config, options.overrides or [])
    job = compile_pipeline(config, options.image, options.out)
    tasks = sorted(job["pipelineSpec"]["root"]["dag"]["tasks"])
    return {"file": str(options.out), "name": config.name, "image": options.image, "tasks": tasks}


if __name__ == "__main__":
    stage_main(main)
