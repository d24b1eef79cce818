"""Whom a run tells of what came of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from recsys.strict import Strict

Told = Literal["blessed", "refused", "failed", "interrupted"]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class NotifyConfig(Strict):
    """A webhook that is told of each run."""

    webhook_env: VariableName | None = None
    """Environment variable that holds the URL of a webhook; the URL is a secret, and the
    config is not. `null`: nobody is told."""
    on: tuple[Told, ...] = ("blessed", "refused", "failed", "interrupted")
    """Runs that it is told of, by what came of them; `interrupted` are those that were stopped
    or killed."""
    timeout_s: Annotated[PositiveFloat, Field(le=120.0)] = 10.0
    """Longest that one attempt may take [s]."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 4
    """Most attempts."""
    total_s: Annotated[PositiveFloat, Field(le=600.0)] = 60.0
    """Longest that all attempts together may take, with the waits between them [s]."""
