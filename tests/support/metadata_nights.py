"""A store of ML Metadata, filled as TFX fills it: nights, their steps and what they made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as proto

from recsys.config import Config

OUTPUT, INPUT = proto.Event.OUTPUT, proto.Event.INPUT
LIVE, COMPLETE = proto.Artifact.LIVE, proto.Execution.COMPLETE


def config_of(root: Path, **more: Any) -> Config:
    """Returns the config of a pipeline `tiny` under a root."""
    columns = {"user": "u", "item": "i", "timestamp": "t"}
    data = {"interactions": {"files": "e.csv", "columns": columns}}
    return Config.model_validate_json(
        json.dumps({"name": "tiny", "root": str(root), "data": data, **more})
    )


class Store:
    """A store under a root, or in memory.

    Args:
        root: The root, made where there is none; None: in memory.
    """

    def __init__(self, root: Path | None = None) -> None:
        connection = proto.ConnectionConfig()
        self.root = root or Path("/none")
        if root is None:
            connection.fake_database.SetInParent()
        else:
            root.mkdir(exist_ok=True)
            connection.sqlite.filename_uri = str(root / "metadata.sqlite")
            mode = proto.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
            connection.sqlite.connection_mode = mode
        self.store = mlmd.MetadataStore(connection)
        kinds = ("pipeline", "pipeline_run", "node")
        self._contexts = {
            kind: self.store.put_context_type(proto.ContextType(name=kind)) for kind in kinds
        }
        self._step = self.store.put_execution_type(proto.ExecutionType(name="step"))

    def execute(
        self,
        step: str,
        run: str,
        *,
        pipeline: str = "tiny",
        state: int = COMPLETE,
        inputs: dict[str, int] | None = None,
        made: dict[str, tuple[str, dict[str, Any]]] | None = None,
        artifact_state: int = LIVE,
        event: int = OUTPUT,
        parameters: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, int]]:
        """Adds an execution; returns its id, and the id of each output.

        `made` is the type and the custom properties of each output, by key.
        """
        names = {"pipeline": pipeline, "pipeline_run": run, "node": f"{pipeline}.{step}"}
        contexts = [
            proto.Context(type_id=self._contexts[kind], name=name) for kind, name in names.items()
        ]
        links = []
        for key, id_ in (inputs or {}).items():
            (artifact,) = self.store.get_artifacts_by_id([id_])
            links.append((artifact, _event(INPUT, key)))
        for key, (kind, properties) in (made or {}).items():
            type_id = self.store.put_artifact_type(proto.ArtifactType(name=kind))
            artifact = proto.Artifact(type_id=type_id, state=artifact_state)
            for name, value in properties.items():
                field = "int_value" if isinstance(value, int) else "string_value"
                setattr(artifact.custom_properties[name], field, value)
            links.append((artifact, _event(event, key)))
        execution = proto.Execution(type_id=self._step, last_known_state=state)
        for name, value in (parameters or {}).items():
            execution.custom_properties[name].string_value = value
        id_, ids, context_ids = self.store.put_execution(
            execution, links, contexts, reuse_context_if_already_exist=True
        )
        parent, child = context_ids[:2]
        known = self.store.get_children_contexts_by_context(parent)
        if child not in {context.id for context in known}:
            link = proto.ParentContext(parent_id=parent, child_id=child)
            self.store.put_parent_contexts([link])
        outputs = dict(zip(made or {}, ids[len(inputs or {}) :], strict=True))
        self._give_folders(step, outputs)
        return id_, outputs

    def _give_folders(self, step: str, outputs: dict[str, int]) -> None:
        for key, id_ in outputs.items():
            (artifact,) = self.store.get_artifacts_by_id([id_])
            artifact.uri = str(self.root / "artifacts" / step / key / str(id_))
            if self.root.is_dir():
                Path(artifact.uri).mkdir(parents=True)
                Path(artifact.uri, "content").write_bytes(b"%0100d" % id_)
            self.store.put_artifacts([artifact])

    def states(self) -> dict[int, int]:
        return {artifact.id: artifact.state for artifact in self.store.get_artifacts()}

    def state(self, execution: int) -> int:
        return self.store.get_executions_by_id([execution])[0].last_known_state

    def night(
        self, run: str, outcome: str = "blessed", pipeline: str = "tiny", **inputs: int
    ) -> dict[str, int]:
        """Adds a night that `failed`, was `refused` or `blessed`, and pushed as version 1, 2, …"""

        def step(name: str, key: str, kind: str, taken: dict[str, int], **properties: Any) -> int:
            made = {key: (kind, properties)}
            return self.execute(name, run, pipeline=pipeline, inputs=taken, made=made)[1][key]

        ids = {"examples": step("InteractionGen", "examples", "Examples", {})}
        ids["statistics"] = step(
            "StatisticsGen", "statistics", "ExampleStatistics", {"examples": ids["examples"]}
        )
        ids["verdict"] = step(
            "DataGate", "verdict", "Verdict", {}, x_statistics_id=ids["statistics"]
        )
        ids["vocabularies"] = step("VocabularyGen", "vocabularies", "Vocabularies", {})
        if outcome == "failed":
            return ids
        taken = {"data": ids["examples"], "verdict": ids["verdict"], **inputs}
        ids["model"] = model = step("Trainer", "model", "Model", taken)
        blessed = {"blessed": int(outcome == "blessed"), "current_model_id": model}
        ids["blessing"] = step("RetrievalEvaluator", "blessing", "ModelBlessing", {}, **blessed)
        pushes = len(self.store.get_artifacts_by_type("PushedModel")) if outcome == "blessed" else 0
        version = str(self.root / "serving" / pipeline / str(pushes + 1))
        pushed = {"pushed_destination": version, "current_model_id": model}
        ids["bundle"] = step("Exporter", "bundle", "ServingBundle", {"model": model})
        pushed = pushed if outcome == "blessed" else {}
        ids["pushed"] = step("Pusher", "pushed", "PushedModel", {"bundle": ids["bundle"]}, **pushed)
        ids["report"] = step("Reporter", "report", "Report", {})
        return ids


def _event(kind: int, key: str) -> proto.Event:
    event = proto.Event(type=kind)
    event.path.steps.add().key = key
    return event
