"""`python -m pipelines.commands NAME …`: commands of `recsys` that query ML Metadata."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Artifact, Execution

from components.metadata import DESTINATION, INPUTS, OUTPUTS, artifact_ids, maker, parameters_of
from pipelines.clean import clean
from pipelines.metadata_store import DATABASE_NAME, open_sqlite, open_store
from pipelines.run_record import History
from recsys.bundles.bundle import MANIFEST
from recsys.config import Config
from recsys.config.load import load_config
from recsys.errors import RecsysError
from recsys.storage.working_folder import fetched, written
from recsys.system.process import stage_main

# --- freeze-schema


def freeze_schemas(config: Config, out: Path, *, force: bool) -> list[Path]:
    """Writes `interactions.pbtxt`, and `items.pbtxt` and `users.pbtxt` if they exist.

    Args:
        config: The config of the run.
        out: Folder to write.
        force: Whether to overwrite existing files.

    Returns:
        The written files.

    Raises:
        RecsysError: There was no run, or a file exists and `force` is not set.
    """
    store = open_store(config)
    schemas = {} if store is None else last_schemas(History(store, config.name))
    if not schemas:
        raise RecsysError(
            "R246",
            f"The pipeline {config.name!r} must have inferred its schemas in a run under"
            f" {config.root}.",
            "Run it with `recsys run` first; later steps may fail.",
        )
    files = {out / f"{what}.pbtxt": schema for what, schema in schemas.items()}
    there = [str(file) for file in files if file.exists()]
    if there and not force:
        rule = "A committed schema is not overwritten, as people may have edited it."
        cure = "Choose another folder, or use --force."
        raise RecsysError("R247", rule, cure, there[0])
    out.mkdir(parents=True, exist_ok=True)
    for file, schema in files.items():
        file.write_text(committable(schema.read_text()))
    return list(files)


def committable(text: str) -> str:
    """Returns a schema whose lists may have any length."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = text_format.Parse(text, schema_pb2.Schema())
    for feature in schema.feature:
        if feature.value_count.max > 1:
            feature.value_count.CopyFrom(schema_pb2.ValueCount(min=1))
    return text_format.MessageToString(schema)


def last_schemas(history: History) -> dict[str, Path]:
    """Returns the newest schema, inferred or committed, of each kind of data."""
    schemas: dict[str, Path] = {}
    for what in ("interactions", "items", "users"):
        steps = (f"{step}.{what.capitalize()}" for step in ("SchemaGen", "ImportSchemaGen"))
        executions = [each for step in steps if (each := history.last_good(step)) is not None]
        if executions:
            newest = max(execution.id for execution in executions)
            for file in history.folder(newest, "schema").glob("*.pbtxt"):
                schemas[what] = file  # `recsys forget` removes it.
    return schemas


# --- lineage

_EARLIER = {"base", "previous", "blessed_model", "blessed"}
_EARLIER |= {"accepted_statistics", "trained_statistics"}
"""Inputs that an earlier run made."""


def trace(store: mlmd.MetadataStore, bundle: Path) -> dict[str, Any] | None:
    """Returns the lineage of a bundle; None if ML Metadata doesn't have it.

    Args:
        store: The metadata store.
        bundle: A bundle of the exporter, a version that was pushed, or a copy of either.

    Returns:
        `name` of the pipeline; `steps` that made it, in order, with `step`, `execution`, `run`,
        `code`, `files_digest` and `outputs`; `models`: its model and its chain of base models, with
        `artifact`, `path`, `run`, `is_there`.
    """
    waiting = [id_ for id_ in [find_bundle(store, bundle)] if id_ is not None]
    if not waiting:
        return None
    executions: dict[int, Execution] = {}
    while waiting:
        execution = maker(store, waiting.pop())
        if execution is not None and execution.id not in executions:
            executions[execution.id] = execution
            inputs = artifact_ids(store, execution.id, INPUTS)
            waiting += [id_ for key in inputs.keys() - _EARLIER for id_ in inputs[key]]
    steps = [_step(store, executions[id_]) for id_ in sorted(executions)]
    # The ranker's training comes last, if there is one.
    trained = [step["execution"] for step in steps if step["step"] in ("Trainer", "RankTrainer")]
    models = list(_models(store, trained[-1] if trained else None))
    name = _context(store, max(executions), "pipeline")
    return {"name": name, "steps": steps, "models": models}


def find_bundle(store: mlmd.MetadataStore, bundle: Path) -> int | None:
    """Returns the artifact id of a bundle or of its original."""
    where = bundle.resolve()
    bundles = store.get_artifacts_by_type("ServingBundle")
    for artifact in bundles:
        if Path(artifact.uri).resolve() == where:
            return int(artifact.id)
    for push in store.get_artifacts_by_type("PushedModel"):
        if Path(push.custom_properties[DESTINATION].string_value).resolve() == where:
            execution = maker(store, push.id)
            taken = artifact_ids(store, execution.id, INPUTS) if execution else {}
            if "bundle" in taken:
                return taken["bundle"][0]
    manifest = (bundle / MANIFEST).read_bytes()
    files = ((artifact.id, Path(artifact.uri) / MANIFEST) for artifact in bundles)
    return next((id_ for id_, f in files if f.is_file() and f.read_bytes() == manifest), None)


def _step(store: mlmd.MetadataStore, execution: Execution) -> dict[str, Any]:
    outputs = artifact_ids(store, execution.id, OUTPUTS)
    artifacts = store.get_artifacts_by_id([id_ for ids in outputs.values() for id_ in ids])
    parameters = parameters_of(execution)
    node = _context(store, execution.id, "node")
    return {
        "step": node.removeprefix(f"{_context(store, execution.id, 'pipeline')}."),
        "execution": execution.id,
        "run": _context(store, execution.id, "pipeline_run"),
        "code": parameters.get("code"),
        "files_digest": parameters.get("files_digest"),
        "outputs": [_described(artifact) for artifact in artifacts],
    }


def _models(store: mlmd.MetadataStore, training: int | None) -> Iterator[dict[str, Any]]:
    while training is not None:
        ((model,),) = artifact_ids(store, training, OUTPUTS).values()
        (artifact,) = store.get_artifacts_by_id([model])
        yield {**_described(artifact), "run": _context(store, training, "pipeline_run")}
        base = artifact_ids(store, training, INPUTS).get("base")
        execution = maker(store, base[0]) if base else None
        training = execution and execution.id


def _described(artifact: Artifact) -> dict[str, Any]:
    is_there = artifact.state == Artifact.LIVE and Path(artifact.uri).is_dir()
    path, kind = artifact.uri, artifact.type
    return {"artifact": artifact.id, "kind": kind, "path": path, "is_there": is_there}


def _context(store: mlmd.MetadataStore, execution: int, kind: str) -> str:
    contexts = store.get_contexts_by_execution(execution)
    return next((str(context.name) for context in contexts if context.type == kind), "")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the command that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.commands")
    parser.add_argument("command", choices=("clean", "forget", "freeze-schema", "lineage"))
    parser.add_argument("--config", type=Path, help="config file (YAML)")
    parser.add_argument("--apply", action="store_true", help="clean: remove what the plan says")
    parser.add_argument("--out", type=Path, help="freeze-schema: folder to write")
    parser.add_argument("--force", action="store_true", help="freeze-schema: overwrite files")
    parser.add_argument("--bundle", type=Path, help="lineage: the bundle")
    parser.add_argument("--users", type=Path, help="forget: user ids, a JSON list")
    parser.add_argument("--root", type=Path, help="lineage: folder of the run, if no --config")
    options = parser.parse_args(arguments)
    config = None if options.config is None else load_config(options.config)
    root = options.root if config is None else config.root_folder
    if options.command == "lineage":
        fetched(root, DATABASE_NAME)
        store = open_sqlite(root) if config is None else open_store(config)
        return {"found": None if store is None else trace(store, options.bundle)}
    if config is None:
        parser.error("--config is required")
    if options.command == "clean":
        with written(root):
            return clean(config, apply=options.apply)
    if options.command == "forget":
        from pipelines.forget import forget

        with written(root):
            return forget(config, json.loads(options.users.read_text("utf-8")))
    fetched(root, DATABASE_NAME, "artifacts/SchemaGen", "artifacts/ImportSchemaGen")
    files = freeze_schemas(config, options.out, force=options.force)
    return {"files": [str(file) for file in files]}


if __name__ == "__main__":
    stage_main(main)
