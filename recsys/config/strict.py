"""What every part of the config is: frozen, strict, closed to unknown keys."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


class Strict(pydantic.BaseModel):
    """Frozen, strict, and closed to unknown keys."""

    model_config = pydantic.ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True
    )
