"""How a run is operated: Beam, ML Metadata, the serving folder, retention, notifications."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from recsys.strict import Strict

Port = Annotated[int, Field(ge=1, le=65535)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Text = Annotated[str, Field(min_length=1)]
Outcome = Literal["blessed", "refused", "failed", "interrupted"]


class BeamConfig(Strict):
    """How Beam runs."""

    args: tuple[str, ...] = ("--runner=DirectRunner",)
    """Passed to Beam as they are."""
    tfx_args: tuple[str, ...] | None = None
    """The same for TFX's own steps, StatisticsGen and Transform, for a runner that lacks
    what they need; `null`: as `args`."""


class MysqlSslConfig(Strict):
    """TLS to the MySQL server."""

    ca: str
    """File of the authorities that the server's certificate is checked by (PEM)."""
    cert: str | None = None
    """File of our own certificate, if the server asks for one (PEM)."""
    key: str | None = None
    """File of its key (PEM)."""
    verify_server: bool = True
    """Whether the name in the server's certificate must be `host`."""

    @model_validator(mode="after")
    def _key_and_certificate_belong_together(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: give both, or neither")
        return self


class MysqlConfig(Strict):
    """A MySQL or MariaDB server, and an existing database on it."""

    host: Text
    """Name or address of the server."""
    port: Port = 3306
    """Its port."""
    database: Text
    """Name of the database, which must exist; the first run fills it."""
    user: Text
    """Name of the database user."""
    password_env: VariableName = "RECSYS_METADATA_PASSWORD"  # noqa: S105 - a variable's name
    """Environment variable that holds the password; it is read nowhere else."""
    ssl: MysqlSslConfig | None = None
    """TLS to the server; `null`: none."""


class MetadataConfig(Strict):
    """ML Metadata."""

    mysql: MysqlConfig | None = None
    """A server for it; `null`: SQLite, in `metadata.sqlite` under `root`."""


class PushConfig(Strict):
    """The serving folder."""

    keep: PositiveInt = 5
    """Newest versions kept in the serving folder."""


class KeepConfig(Strict):
    """Which files of earlier runs stay on the disk; `null` removes nothing.

    What the next run, or the served model, needs stays in any case.
    """

    runs: PositiveInt | None = None
    """Newest runs whose artifacts stay, beside those that later runs and the served versions need;
    `null`: their number removes nothing."""
    days: PositiveInt | None = None
    """Days for which the artifacts of a run stay; with `runs` too, an artifact stays
    if either of the two keeps it. `null`: age removes nothing."""
    checkpoints: PositiveInt | None = None
    """Newest trainings whose checkpoints stay; a killed run resumes from the newest."""
    records: PositiveInt | None = None
    """Newest runs whose record, report, log and TensorBoard files stay."""

    @property
    def is_set(self) -> bool:
        """Whether anything is ever removed."""
        return self != KeepConfig()


class NotifyConfig(Strict):
    """A webhook that gets the summary of each run."""

    webhook_env: VariableName | None = None
    """Environment variable that holds the URL of a webhook; the URL is a secret, and the
    config is not. `null`: no notification."""
    on: tuple[Outcome, ...] = ("blessed", "refused", "failed", "interrupted")
    """Outcomes of runs that are sent; `interrupted` are runs that were stopped or killed."""
    timeout_s: Annotated[PositiveFloat, Field(le=120.0)] = 10.0
    """Longest that one attempt may take [s]."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 4
    """Most attempts."""
    total_s: Annotated[PositiveFloat, Field(le=600.0)] = 60.0
    """Longest that all attempts together may take, with the waits between them [s]."""
