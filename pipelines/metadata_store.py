"""The connection to ML Metadata: SQLite under the root, or MySQL by config.

TFX compiles the connection into the pipeline, which is copied and shown, so the password is added
only when a connection is opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import uuid
from pathlib import Path

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as proto

from recsys.config import Config, MysqlConfig
from recsys.errors import RecsysError, UsageError
from recsys.system.files import commit_text

DATABASE_NAME = "metadata.sqlite"
_TIMEOUT_S = 10.0


def connection_config(config: Config) -> proto.ConnectionConfig:
    """Returns the connection to the ML Metadata of `config`, without the password."""
    connection = proto.ConnectionConfig()
    mysql = config.metadata.mysql
    if mysql is None:
        connection.sqlite.filename_uri = str(config.root_folder / DATABASE_NAME)
        connection.sqlite.connection_mode = proto.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        return connection
    server = connection.mysql
    server.host, server.port = mysql.host, mysql.port
    server.database, server.user = mysql.database, mysql.user
    server.skip_db_creation = True  # A typo in the name would start a new history.
    if mysql.ssl is not None:
        server.ssl_options.ca = mysql.ssl.ca
        server.ssl_options.verify_server_cert = mysql.ssl.verify_server
        if mysql.ssl.cert is not None and mysql.ssl.key is not None:
            server.ssl_options.cert, server.ssl_options.key = mysql.ssl.cert, mysql.ssl.key
    return connection


def with_password(config: Config) -> proto.ConnectionConfig:
    """Returns `connection_config` with the password from the environment.

    Raises:
        UsageError: The variable of the server's password is not set.
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
    """Checks the connection to the server of `config`, if it has one.

    Raises:
        RecsysError: The server can't be reached, or refuses the connection.
    """
    mysql = config.metadata.mysql
    if mysql is None:
        return
    connection = with_password(config)
    try:
        # MySQL's client would wait for minutes.
        socket.create_connection((mysql.host, mysql.port), _TIMEOUT_S).close()
    except OSError as error:
        rule = (
            f"The MySQL server {mysql.host}:{mysql.port} of ML Metadata must answer within"
            f" {_TIMEOUT_S:.0f} s."
        )
        cure = "Start it, or correct metadata.mysql; no step was run."
        raise RecsysError("R612", rule, cure, error.strerror or str(error)) from None
    try:
        mlmd.MetadataStore(connection)
    except (RuntimeError, mlmd.errors.StatusError) as error:
        raise _refused(mysql, str(error)) from None


def open_store(config: Config, *, writes: bool = False) -> mlmd.MetadataStore | None:
    """Returns the store of `config`; None before the first run.

    Raises:
        RecsysError: As `check_metadata`.
    """
    if config.metadata.mysql is not None:
        check_metadata(config)
        return mlmd.MetadataStore(with_password(config))
    return open_sqlite(config.root_folder, writes=writes)


def open_sqlite(root: Path, *, writes: bool = False) -> mlmd.MetadataStore | None:
    """Returns the SQLite store under a root; None before the first run."""
    if not (root / DATABASE_NAME).is_file():
        return None
    connection = proto.ConnectionConfig()
    connection.sqlite.filename_uri = str(root / DATABASE_NAME)
    modes = proto.SqliteMetadataSourceConfig
    connection.sqlite.connection_mode = modes.READWRITE if writes else modes.READONLY
    return mlmd.MetadataStore(connection)


def _refused(mysql: MysqlConfig, message: str) -> RecsysError:
    match = re.search(r"errno: (.*?),? *error:", message)
    return RecsysError(
        "R613",
        f"MySQL on {mysql.host}:{mysql.port} must let {mysql.user!r} use the database"
        f" {mysql.database!r} with the password that {mysql.password_env} holds.",
        "Create the database and grant the rights (docs/schedule/README.md has the lines), or"
        f" correct metadata.mysql or {mysql.password_env}; nothing was run.",
        (match[1] if match else message).strip() or ...,
    )


def check_root(store: mlmd.MetadataStore, name: str, root: Path) -> None:
    """Checks that the root was not moved: ML Metadata has full paths.

    Raises:
        RecsysError: The root was moved (R571).
    """
    context = store.get_context_by_type_and_name("pipeline", name)
    artifacts = store.get_artifacts_by_context(context.id) if context else []
    live = [Path(each.uri) for each in artifacts if each.state == proto.Artifact.LIVE]
    for path in live:
        if path.exists() or not root.joinpath("artifacts", *path.parts[-3:]).exists():
            continue
        before = path.parents[3] if len(path.parents) > 3 else path
        raise RecsysError(
            "R571",
            f"The root must stay where its runs were: ML Metadata has files in {str(before)!r}.",
            f"Move it back, or make a link there: ln -s {shlex.quote(str(root.absolute()))}"
            f" {shlex.quote(str(before))}. Nothing was changed.",
            str(root),
        )


# --- one root for each name in a shared database

_TYPE = "recsys_root"
_ID_FILE = "root.id"


def claim_name(store: mlmd.MetadataStore, name: str, root: Path) -> None:
    """Binds `root` to `name` permanently; only the holder of the run lock may call this.

    Args:
        store: A database that other roots may share.
        name: Name of the pipeline.
        root: Output folder of the runs.

    Raises:
        RecsysError: The name belongs to another root.
    """
    ours = _root_id(root)
    type_id = store.put_context_type(proto.ContextType(name=_TYPE))
    claim = proto.Context(name=name, type_id=type_id)
    claim.custom_properties["id"].string_value = ours
    claim.custom_properties["root"].string_value = str(root)
    claim.custom_properties["host"].string_value = socket.gethostname()
    if store.get_context_by_type_and_name(_TYPE, name) is None:
        # If another process is faster, its entry is read below.
        with contextlib.suppress(mlmd.errors.AlreadyExistsError):
            store.put_contexts([claim])
    held = store.get_context_by_type_and_name(_TYPE, name).custom_properties
    if held["id"].string_value != ours:
        owner = f"{held['root'].string_value!r} on {held['host'].string_value}"
        rule = f"In this database of ML Metadata the name {name!r} belongs to the root {owner}."
        cure = "Choose another name, run in that root, or use a separate database."
        raise RecsysError("R616", rule, cure, str(root))


def _root_id(root: Path) -> str:
    """Returns the id of this root, independent of its path."""
    file = root / _ID_FILE
    if not file.exists():
        commit_text(uuid.uuid4().hex + "\n", file)
    return file.read_text(encoding="ascii").strip()
