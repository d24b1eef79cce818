"""The connection to ML Metadata: SQLite under the root, or MySQL by config.

TFX compiles the connection into the pipeline, and what is compiled is copied and shown.
So the password is not part of it: it is added where somebody connects.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2
from ml_metadata.proto import metadata_store_pb2 as proto

from recsys.config import Config
from recsys.config.operation import MysqlConfig
from recsys.errors import RecsysError, UsageError
from recsys.runs.retention_facts import Artifact, Execution, Known, PastRun, State

DATABASE_NAME = "metadata.sqlite"
_TIMEOUT_S = 10.0


def connection_config(config: Config) -> metadata_store_pb2.ConnectionConfig:
    """Returns where ML Metadata of `config` is kept, without a password."""
    connection = metadata_store_pb2.ConnectionConfig()
    mysql = config.metadata.mysql
    if mysql is None:
        connection.sqlite.filename_uri = str(Path(config.root) / DATABASE_NAME)
        connection.sqlite.connection_mode = (
            metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        )
        return connection
    server = connection.mysql
    server.host, server.port = mysql.host, mysql.port
    server.database, server.user = mysql.database, mysql.user
    server.skip_db_creation = True  # A slip in the name would start a history anew.
    if mysql.ssl is not None:
        server.ssl_options.ca = mysql.ssl.ca
        server.ssl_options.verify_server_cert = mysql.ssl.verify_server
        if mysql.ssl.cert is not None and mysql.ssl.key is not None:
            server.ssl_options.cert, server.ssl_options.key = mysql.ssl.cert, mysql.ssl.key
    return connection


def with_password(config: Config) -> metadata_store_pb2.ConnectionConfig:
    """Returns `connection_config` with the password of the environment.

    Raises:
        UsageError: There is a server, and the variable of its password is not set.
    """
    connection = connection_config(config)
    mysql = config.metadata.mysql
    if mysql is not None:
        password = os.environ.get(mysql.password_env)
        if password is None:
            raise UsageError(
                "R615",
                f"The environment variable {mysql.password_env} must hold the password of"
                f" {mysql.user!r} on {mysql.host}.",
                "Set it, empty if there is none, or name another one in"
                " metadata.mysql.password_env.",
            )
        connection.mysql.password = password
    return connection


def check_metadata(config: Config) -> None:
    """Connects once to the server of `config`, if it has one, before any work is begun.

    Raises:
        RecsysError: The server can't be reached, or refuses us.
    """
    mysql = config.metadata.mysql
    if mysql is None:
        return
    connection = with_password(config)
    try:
        # The client of MySQL would wait for minutes.
        socket.create_connection((mysql.host, mysql.port), _TIMEOUT_S).close()
    except OSError as error:
        raise RecsysError(
            "R612",
            f"The MySQL server {mysql.host}:{mysql.port} of ML Metadata must answer within"
            f" {_TIMEOUT_S:.0f} s.",
            "Start it, or correct metadata.mysql; nothing was run.",
            error.strerror or str(error),
        ) from None
    try:
        mlmd.MetadataStore(connection)
    except (RuntimeError, mlmd.errors.StatusError) as error:
        raise _refused(mysql, str(error)) from None


def open_store(config: Config) -> mlmd.MetadataStore | None:
    """Returns the store of `config` to look things up in; None before the first run.

    Raises:
        RecsysError: As `check_metadata`.
    """
    if config.metadata.mysql is not None:
        check_metadata(config)
        return mlmd.MetadataStore(with_password(config))
    connection = connection_config(config)
    if not Path(connection.sqlite.filename_uri).is_file():
        return None
    connection.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READONLY
    return mlmd.MetadataStore(connection)


def _refused(mysql: MysqlConfig, message: str) -> RecsysError:
    """Returns the error of a server that answered, and refused the connection.

    What ML Metadata passes on of the server's own error is its text, or nothing.
    """
    match = re.search(r"errno: (.*?),? *error:", message)
    text = match[1].strip() if match else message.strip()
    where = f"on {mysql.host}:{mysql.port}"
    if not text or "Access denied" in text:
        return RecsysError(
            "R613",
            f"MySQL {where} must let {mysql.user!r} use the database {mysql.database!r} with the"
            f" password that {mysql.password_env} holds.",
            "Correct the variable, metadata.mysql.user or metadata.mysql.ssl, or grant the"
            " rights; nothing was run.",
            text or ...,
        )
    if "Unknown database" in text:
        return RecsysError(
            "R614",
            f"The database {mysql.database!r} must be there {where}.",
            "Create it (docs/schedule/README.md has the lines), or correct"
            " metadata.mysql.database; nothing was run.",
            text,
        )
    return RecsysError(
        "R619",
        f"ML Metadata must be able to use the database {mysql.database!r} {where}.",
        "What was received says what MySQL or ML Metadata made of it; nothing was run.",
        text,
    )


# --- one root for each name in a shared database

_TYPE = "recsys_root"
_ID_FILE = "root.id"


def claim_name(store: mlmd.MetadataStore, name: str, root: Path) -> None:
    """Gives `name` to `root`, for good; the holder of the run lock alone may call this.

    Args:
        store: A database that other roots may use as well.
        name: Name of the pipeline.
        root: Folder of everything that a run writes.

    Raises:
        RecsysError: The name belongs to another root.
    """
    ours = _root_id(root)
    claim = metadata_store_pb2.Context(name=name, type_id=_type(store))
    claim.custom_properties["id"].string_value = ours
    claim.custom_properties["root"].string_value = str(root)
    claim.custom_properties["host"].string_value = socket.gethostname()
    if store.get_context_by_type_and_name(_TYPE, name) is None:
        # Where somebody is faster, who it is is read below.
        with contextlib.suppress(mlmd.errors.AlreadyExistsError):
            store.put_contexts([claim])
    held = store.get_context_by_type_and_name(_TYPE, name).custom_properties
    if held["id"].string_value != ours:
        owner = f"{held['root'].string_value!r} on {held['host'].string_value}"
        raise RecsysError(
            "R616",
            f"In this database of ML Metadata the name {name!r} belongs to the root {owner}.",
            "Choose another name, run in that root, or take a database of its own.",
            str(root),
        )


def _type(store: mlmd.MetadataStore) -> int:
    return int(store.put_context_type(metadata_store_pb2.ContextType(name=_TYPE)))


def _root_id(root: Path) -> str:
    """Returns what tells this root from all others, by whatever path it is reached."""
    file = root / _ID_FILE
    if not file.exists():
        fresh = file.with_suffix(".new")
        fresh.write_text(uuid.uuid4().hex + "\n", encoding="ascii")
        os.replace(fresh, file)
    return file.read_text(encoding="ascii").strip()


# --- what ML Metadata knows of earlier runs

_T = TypeVar("_T")
_INPUTS = (proto.Event.INPUT, proto.Event.DECLARED_INPUT, proto.Event.INTERNAL_INPUT)
_OUTPUTS = (proto.Event.OUTPUT, proto.Event.DECLARED_OUTPUT, proto.Event.INTERNAL_OUTPUT)
_ENDED_WELL = (proto.Execution.COMPLETE, proto.Execution.CACHED)
_STATES: dict[int, State] = {proto.Artifact.LIVE: "live", proto.Artifact.DELETED: "deleted"}
_PARAMETERS = ("code", "files_digest")
_AT_ONCE = 500


def read_known(store: mlmd.MetadataStore, name: str) -> Known:
    """Returns what ML Metadata knows of the pipeline `name`; of others nothing.

    Args:
        store: The store.
        name: Name of the pipeline.
    """
    pipeline = store.get_context_by_type_and_name("pipeline", name)
    if pipeline is None:
        return Known((), (), {})
    run_of, runs = _runs(store, pipeline.id)
    executions = _executions(store, name, run_of)
    ids = sorted({id_ for execution in executions for id_ in execution.artifacts})
    kinds = {kind.id: kind.name for kind in store.get_artifact_types()}
    artifacts = {
        artifact.id: _artifact(artifact, kinds)
        for part in _in_parts(ids)
        for artifact in store.get_artifacts_by_id(part)
    }
    return Known(runs, executions, artifacts)


def _runs(store: mlmd.MetadataStore, pipeline: int) -> tuple[dict[int, str], list[PastRun]]:
    """Returns the run of each execution, and the runs, the oldest first."""
    children = store.get_children_contexts_by_context(pipeline)
    try:
        kind = store.get_context_type("pipeline_run").id
    except mlmd.errors.NotFoundError:
        return {}, []
    contexts = [context for context in children if context.type_id == kind]
    contexts.sort(key=lambda context: (context.create_time_since_epoch, context.id))
    run_of = {
        execution.id: context.name
        for context in contexts
        for execution in store.get_executions_by_context(context.id)
    }
    runs = [PastRun(context.name, context.create_time_since_epoch / 1e3) for context in contexts]
    return run_of, runs


def _executions(store: mlmd.MetadataStore, name: str, run_of: dict[int, str]) -> list[Execution]:
    executions = [
        execution
        for part in _in_parts(sorted(run_of))
        for execution in store.get_executions_by_id(part)
    ]
    events: dict[int, list[proto.Event]] = {}
    for part in _in_parts([execution.id for execution in executions]):
        for event in store.get_events_by_execution_ids(part):
            events.setdefault(event.execution_id, []).append(event)
    steps = _steps(store, name)
    return [
        Execution(
            id=execution.id,
            step=steps.get(execution.id, ""),
            run=run_of[execution.id],
            ended_well=execution.last_known_state in _ENDED_WELL,
            inputs=_by_key(events.get(execution.id, ()), _INPUTS),
            outputs=_by_key(events.get(execution.id, ()), _OUTPUTS),
            parameters=_parameters(execution),
        )
        for execution in sorted(executions, key=lambda execution: execution.id)
    ]


def _steps(store: mlmd.MetadataStore, name: str) -> dict[int, str]:
    """Returns the name of the step of each execution."""
    prefix = f"{name}."
    return {
        execution.id: context.name.removeprefix(prefix)
        for context in store.get_contexts_by_type("node")
        if context.name.startswith(prefix)
        for execution in store.get_executions_by_context(context.id)
    }


def _by_key(events: Iterable[proto.Event], kinds: Sequence[int]) -> dict[str, list[int]]:
    ids: dict[str, list[int]] = {}
    for event in events:
        if event.type in kinds:
            ids.setdefault(event.path.steps[0].key, []).append(event.artifact_id)
    return ids


def _parameters(execution: proto.Execution) -> dict[str, str]:
    values = {**execution.properties, **execution.custom_properties}
    return {name: values[name].string_value for name in _PARAMETERS if name in values}


def _artifact(artifact: proto.Artifact, kinds: dict[int, str]) -> Artifact:
    values = {**artifact.properties, **artifact.custom_properties}
    return Artifact(
        id=artifact.id,
        kind=kinds.get(artifact.type_id, ""),
        path=Path(artifact.uri),
        state=_STATES.get(artifact.state, "other"),
        numbers={key: v.int_value for key, v in values.items() if v.HasField("int_value")},
        texts={key: v.string_value for key, v in values.items() if v.HasField("string_value")},
    )


def _in_parts(ids: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yields a few ids at a time: SQLite takes so many in one query."""
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]
