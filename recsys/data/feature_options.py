"""Options that features of users, items and events share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field, PositiveInt, model_validator

from recsys.strict import Name, Strict


class NumberOptions(Strict):
    """How a model reads a number."""

    model_config = pydantic.ConfigDict(serialize_by_alias=True)

    buckets: Annotated[int, Field(ge=2)] = 10
    """Number of quantile buckets."""
    as_: Literal["buckets", "dense"] = Field(default="buckets", alias="as")
    """`buckets`: the embedding of its quantile bucket; `dense`: the scaled number, and 1 if it is
    known; both are 0 if it is missing."""
    scale: Literal["standard", "log"] = "standard"
    """Scale of a `dense` number. `standard`: mean 0 and variance 1; `log`: the same of its
    logarithm, sign(x) ln(1 + |x|)."""

    @model_validator(mode="after")
    def _scale_is_used(self) -> Self:
        if self.scale != "standard" and self.as_ != "dense":
            raise ValueError(f"scale: {self.scale} needs as: dense; received as: {self.as_}")
        return self

    @property
    def floats(self) -> int:
        """Number of float32 values; 0 for buckets."""
        return 2 if self.as_ == "dense" else 0


class VectorOptions(Strict):
    """Vectors of numbers, such as embeddings of texts or images."""

    model_config = pydantic.ConfigDict(serialize_by_alias=True)

    length: PositiveInt = Field(alias="width")
    """Number of numbers in each list."""

    @property
    def floats(self) -> int:
        """Number of float32 values: the numbers, and 1 if they are known."""
        return self.length + 1


class CrossOptions(Strict):
    """Pairs of tokens of other features, hashed to rows."""

    of: Annotated[tuple[Name, ...], Field(min_length=2)]
    """Names of two or more features that have one token. If one of the tokens is missing, there is
    no pair."""
    hash_buckets: PositiveInt = 1000
    """Number of rows for hashed pairs."""


def check_crosses(features: Iterable[Any], where: str) -> None:
    """Checks that crosses are of other features that have one token, and are used like them.

    Args:
        features: Features of one side.
        where: Key of the features, for the message.

    Raises:
        ValueError: A cross is of other features.
    """
    known = {feature.name: feature for feature in features}
    for cross in known.values():
        for name in cross.of if isinstance(cross, CrossOptions) else ():
            part = known.get(name)
            if part is None or part.value == "tokens" or part.floats or part.width != 1:
                raise ValueError(
                    f"{cross.name} must be a cross of features in {where} that have one token each;"
                    f" received {name!r}"
                )
            for use in ("context", "outcome"):
                if getattr(part, use, False) and not getattr(cross, use):
                    raise ValueError(f"{cross.name} must have {use}: true, as {name} has it")
