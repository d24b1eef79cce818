"""What a person wishes of `POST /api/recommend`: its body, read in bounded time."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic

from recsys.serving.server.limits import MIB
from recsys.serving.server.question import read_object
from recsys.serving.server.refusals import INVALID, Refusal, too_large

HIGHEST = 2**53 - 1
"""What every reader of JSON reads exactly."""
MOST_FOUND = 100
_MOST_BYTES = 1 * MIB
_LONGEST_ID, _LONGEST_TASTE, _MOST = 1000, 500, 10_000


def _check_size(value: Any) -> Any:
    """Refuses a long list or object before each of its elements becomes an error of its own."""
    if isinstance(value, list | dict) and len(value) > _LONGEST_TASTE:
        raise ValueError(f"at most {_LONGEST_TASTE} elements may be given, not {len(value):,}")
    return value


Id = Annotated[str, pydantic.StringConstraints(max_length=_LONGEST_ID)]
_Short = pydantic.BeforeValidator(_check_size)
_Ids = Annotated[list[Id], pydantic.FailFast()]
_Taste = Annotated[_Ids, pydantic.Field(max_length=_LONGEST_TASTE), _Short]
_Tokens = Annotated[_Ids, pydantic.Field(max_length=MOST_FOUND), _Short]


class Wish(pydantic.BaseModel):
    """What to recommend, and to whom: a user, a taste, or a user with another taste."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    user: Id = ""
    """Id of a user."""
    items: _Taste = []
    """Ids of items that are liked, the newest first, in place of the user's own."""
    exclude: _Taste = []
    """Ids of items that are not wanted."""
    only: Annotated[dict[Id, _Tokens], pydantic.Field(max_length=MOST_FOUND), _Short] = {}
    """Names of tokens by filter: every item has one of each filter."""
    k: int = pydantic.Field(10, ge=1, le=_MOST)
    """How many items."""
    exclude_seen: bool | None = None
    """Whether what the user did is left out; by default as the model's config has it:
    yes, unless `repeats` is `include`."""
    version: int | None = pydantic.Field(None, ge=0, le=HIGHEST)
    """One that is loaded; the newest by default."""


def read_wish(body: bytes) -> Wish:
    """Returns the wish that a body holds.

    Raises:
        Refusal: It is too large (413), no JSON (400), or breaks a rule (422): the first
            one is told.
    """
    if len(body) > _MOST_BYTES:
        raise too_large("bytes of a wish", _MOST_BYTES, len(body))
    fields = read_object(body)
    for name in fields:
        if name not in Wish.model_fields:
            raise invalid("body", f"The fields are {', '.join(Wish.model_fields)}", name)
    try:
        return Wish.model_validate(fields)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["body", *map(str, first["loc"])])
        raise invalid(where, first["msg"], first["input"]) from None


def invalid(where: str, rule: str, received: Any) -> Refusal:
    """Returns what a client hears whose parameter, or field of a body, breaks a rule."""
    return Refusal(
        INVALID, "R569", f"{where}: {rule}.", "GET /openapi.json has the rules.", received
    )
