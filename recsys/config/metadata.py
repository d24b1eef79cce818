"""Where ML Metadata is kept: what ran, on what, and what came of it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from recsys.strict import Strict

Port = Annotated[int, Field(ge=1, le=65535)]
VariableName = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")]
_Text = Annotated[str, Field(min_length=1)]


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
    """A MySQL or MariaDB server, and a database on it that is there."""

    host: _Text
    """Name or address of the server."""
    port: Port = 3306
    """Its port."""
    database: _Text
    """Name of the database; made by you, filled by the first run."""
    user: _Text
    """Who asks."""
    password_env: VariableName = "RECSYS_METADATA_PASSWORD"  # noqa: S105 - a variable's name
    """Environment variable that holds the password; it is read nowhere else."""
    ssl: MysqlSslConfig | None = None
    """TLS to the server; `null`: none."""


class MetadataConfig(Strict):
    """ML Metadata."""

    mysql: MysqlConfig | None = None
    """A server for it; `null`: SQLite, in `metadata.sqlite` under `root`."""
