"""Configs of the operation of runs: Beam, metadata, serving folder, retention, notifications."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from recsys.strict import Strict

Port = Annotated[int, Field(ge=1, le=65535)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Text = Annotated[str, Field(min_length=1)]
Outcome = Literal["blessed", "refused", "failed", "interrupted"]


class BeamConfig(Strict):
    """Apache Beam."""

    args: tuple[str, ...] = ("--runner=DirectRunner",)
    """Pipeline arguments for Beam. `DirectRunner`, and no runner at all, mean Beam's FnApiRunner on
    this machine."""
    tfx_args: tuple[str, ...] | None = None
    """Pipeline arguments of the TFX steps StatisticsGen and Transform, for a runner that does not
    support them; `null`: same as `args`."""


class MysqlSslConfig(Strict):
    """TLS to the MySQL server."""

    ca: str
    """CA certificates that verify the server's certificate (PEM file)."""
    cert: str | None = None
    """Client certificate, if the server requires one (PEM file)."""
    key: str | None = None
    """Private key of the client certificate (PEM file)."""
    verify_server: bool = True
    """Whether the name in the server's certificate must equal `host`."""

    @model_validator(mode="after")
    def _key_and_certificate_belong_together(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key must be given together, or neither of them")
        return self


class MysqlConfig(Strict):
    """An existing database on a MySQL or MariaDB server."""

    host: Text
    """Host name or address of the server."""
    port: Port = 3306
    """Port of the server."""
    database: Text
    """Name of the database. It must exist; the first run creates its tables."""
    user: Text
    """Database user."""
    password_env: VariableName = "RECSYS_METADATA_PASSWORD"  # noqa: S105 - a variable's name
    """Environment variable that holds the password. It is the only place where the password is
    read."""
    ssl: MysqlSslConfig | None = None
    """TLS to the server; `null`: none."""


class MetadataConfig(Strict):
    """The store of ML Metadata."""

    mysql: MysqlConfig | None = None
    """MySQL server; `null`: SQLite, in `metadata.sqlite` under `root`."""


class PushConfig(Strict):
    """The serving folder."""

    keep: PositiveInt = 5
    """Number of newest versions to keep in the serving folder."""


class KeepConfig(Strict):
    """Retention of earlier runs; `null` removes nothing.

    Artifacts that the next run or the served model needs are always kept.
    """

    runs: PositiveInt | None = None
    """Number of newest runs whose artifacts are kept, besides those that later runs and served
    versions need; `null`: no limit on the number."""
    days: PositiveInt | None = None
    """Days for which the artifacts of a run are kept. If `runs` is set too, a run is kept if
    either rule keeps it. `null`: no limit on the age."""
    checkpoints: PositiveInt | None = None
    """Number of newest trainings whose checkpoints are kept; a killed run resumes from the
    newest."""
    records: PositiveInt | None = None
    """Number of newest runs whose record, report, log and TensorBoard events are kept."""

    @property
    def is_set(self) -> bool:
        """Whether any limit is set."""
        return self != KeepConfig()


class NotifyConfig(Strict):
    """A webhook that is called at the end of each run."""

    webhook_env: VariableName | None = None
    """Environment variable that holds the URL of the webhook, which is a secret and so does not
    belong in the config; `null`: no webhook."""
    on: tuple[Outcome, ...] = ("blessed", "refused", "failed", "interrupted")
    """Outcomes for which the webhook is called; `interrupted` runs were stopped or killed."""
    timeout_s: Annotated[PositiveFloat, Field(le=120.0)] = 10.0
    """Timeout of one attempt [s]."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 4
    """Highest number of attempts."""
    total_s: Annotated[PositiveFloat, Field(le=600.0)] = 60.0
    """Timeout of all attempts together, including the waits between them [s]."""
