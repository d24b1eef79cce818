"""Compiles the pipeline for Kubeflow Pipelines v2 and Vertex AI; runs nothing, asks no server.

    python -m pipelines.kubeflow_runner CONFIG --image IMAGE [--set path=value …] [--out FILE]

`CONFIG` is the config of any run, with `root` and the files in a bucket (`--set` will do).
docs/schedule/kubeflow.md says what becomes of the file.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfx.orchestration.pipeline import Pipeline

from components import artifacts
from pipelines.kubeflow_platform import OUR_TYPES, KubeflowPlatform, for_kubeflow
from pipelines.retrieval import create_pipeline
from recsys.config import Config
from recsys.config.load import load_config
from recsys.distribution import install_extra
from recsys.errors import UsageError
from recsys.system.process import stage_main

ENTRYPOINT = ("python", "-m", "pipelines.kubeflow_entrypoint")
"""What every container starts with; it gives the executor paths in the place of addresses."""


def kubeflow_pipeline(config: Config) -> Pipeline:
    """Returns the pipeline of `config` as Kubeflow can run it.

    Raises:
        UsageError: The config asks for what can't be done there.
    """
    return create_pipeline(for_kubeflow(config), KubeflowPlatform())


def compile_pipeline(config: Config, image: str, out: Path) -> dict[str, Any]:
    """Writes the job of `config` and returns it.

    Args:
        config: The whole config, with addresses of a bucket.
        image: The container image of all steps (deploy/Dockerfile).
        out: File to write: `.json` holds a PipelineJob, `.yaml` its PipelineSpec.

    Raises:
        UsageError: `kfp` is not installed, or the config asks for what can't be done there.
    """
    if importlib.util.find_spec("kfp") is None:
        raise UsageError(
            "R618",
            "Compiling for Kubeflow needs the package kfp.",
            f"{install_extra('kubeflow')} It needs Python 3.11.",
        )
    from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner as kubeflow

    runner = kubeflow.KubeflowV2DagRunner(
        config=kubeflow.KubeflowV2DagRunnerConfig(
            default_image=image, default_commands=list(ENTRYPOINT), use_pipeline_spec_2_1=True
        ),
        output_dir=str(out.resolve().parent),
        output_filename=out.name,
    )
    with _named_for_kubeflow():
        job: dict[str, Any] = runner.run(kubeflow_pipeline(config))
    return job


@contextmanager
def _named_for_kubeflow() -> Iterator[None]:
    """Gives our artifact types names as Kubeflow wants them, `recsys.DeadLetters`.

    At home they keep the short ones: under others ML Metadata would not find what earlier
    runs made.
    """
    types = [one for one in vars(artifacts).values() if _is_ours(one)]
    names = {one: one.TYPE_NAME for one in types}
    try:
        for one, name in names.items():
            one.TYPE_NAME = f"{OUR_TYPES}{name}"
        yield
    finally:
        for one, name in names.items():
            one.TYPE_NAME = name


def _is_ours(value: Any) -> bool:
    return isinstance(value, type) and value.__module__ == artifacts.__name__


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Compiles as the command line says; returns what was written."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.kubeflow_runner")
    parser.add_argument("config", type=Path, help="config file (YAML)")
    parser.add_argument("--image", required=True, help="container image of all steps")
    parser.add_argument("--out", type=Path, default=Path("pipeline.json"), help=".json or .yaml")
    parser.add_argument(
        "--set", dest="overrides", metavar="path=value", action="append", default=[]
    )
    options = parser.parse_args(arguments)
    config = load_config(options.config, options.overrides)
    job = compile_pipeline(config, options.image, options.out)
    tasks = sorted(job["pipelineSpec"]["root"]["dag"]["tasks"])
    return {"file": str(options.out), "name": config.name, "image": options.image, "tasks": tasks}


if __name__ == "__main__":
    stage_main(main)
