"""The JSON API behind the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from recsys.serving.server import openapi
from recsys.serving.server.answers import PageAnswers
from recsys.serving.server.http_errors import INVALID, HttpError, too_large
from recsys.serving.server.limits import MIB
from recsys.serving.server.messages import read_object
from recsys.serving.server.micro_batcher import MicroBatcher
from recsys.serving.server.served_models import ServedModel

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


class RecommendRequest(pydantic.BaseModel):
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


def read_recommend_request(body: bytes) -> RecommendRequest:
    """Returns the request that a body holds.

    Raises:
        HttpError: It is too large (413), no JSON (400), or breaks a rule (422): the first
            one is reported.
    """
    if len(body) > _MOST_BYTES:
        raise too_large("bytes of a recommend request", _MOST_BYTES, len(body))
    fields = read_object(body)
    for name in fields:
        if name not in RecommendRequest.model_fields:
            raise invalid(
                "body", f"The fields are {', '.join(RecommendRequest.model_fields)}", name
            )
    try:
        return RecommendRequest.model_validate(fields)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["body", *map(str, first["loc"])])
        raise invalid(where, first["msg"], first["input"]) from None


def invalid(where: str, rule: str, received: Any) -> HttpError:
    """Returns what a client hears whose parameter, or field of a body, breaks a rule."""
    return HttpError(
        INVALID, "R569", f"{where}: {rule}.", "GET /openapi.json has the rules.", received
    )


Version = Annotated[
    int | None, Query(ge=0, le=HIGHEST, description="One that is loaded; the newest by default.")
]
Found = Annotated[int, Query(ge=1, le=MOST_FOUND, description="Most that are found.")]

_RECOMMEND_REQUEST = {
    "required": True,
    "content": {"application/json": {"schema": RecommendRequest.model_json_schema()}},
}


class Item(pydantic.BaseModel):
    """An item as people see it."""

    id: str
    title: str
    features: dict[str, list[str]]


class ScoredItem(Item):
    """An item with the score that put it where it is."""

    score: float


class Token(pydantic.BaseModel):
    """A token of a feature, by its name."""

    id: str


class User(pydantic.BaseModel):
    """A user."""

    id: str


class Answer(pydantic.BaseModel):
    """What every answer tells."""

    version: int
    """The version that answered."""
    milliseconds: float
    """How long it took, without the network."""


class Users(Answer):
    """Users that were found."""

    users: list[User]


class Tokens(Answer):
    """Tokens that were found, those of the most items first."""

    tokens: list[Token]


class Items(Answer):
    """Items that were found, those with the most training events first."""

    items: list[Item]


class Similar(Answer):
    """Items like one."""

    item: Item
    items: list[ScoredItem]


class Recommended(Answer):
    """Items for a user or a taste, the best first."""

    known: bool
    """Whether the model knows the user."""
    source: str
    """What the answer rests on: `user`, `history`, `features` or `popularity`; empty where
    an older bundle doesn't tell."""
    history: list[Item]
    """What the recommendation is made of, the newest first."""
    unknown_items: list[str]
    """Ids of the request that are no items."""
    items: list[ScoredItem]


class State(pydantic.BaseModel):
    """Whether there is something to ask."""

    name: str
    ready: bool
    sentence: str
    """Shown until a version answers."""


class About(pydantic.BaseModel):
    """What is served."""

    name: str
    versions: list[int]
    """Those that are loaded, the newest first."""
    filters: dict[str, str]
    """Features that items of the newest version can be filtered by, by filter."""
    most: int
    """Items that all of them can answer with."""


def router(served: ServedModel, work: MicroBatcher) -> APIRouter:
    """Returns the routes below `/api`."""
    routes = APIRouter(
        prefix="/api",
        tags=["page"],
        responses=openapi.errors(400, 404, 408, 413, 415, 421, 422, 429, 503),
    )

    @routes.get("/state")
    async def state() -> State:
        """Tell whether a version is loaded, and why none is."""
        ready, sentence = served.state()
        return State(name=served.name, ready=ready, sentence=sentence)

    @routes.get("/about")
    async def about() -> About:
        """Tell what is served."""
        served.model()
        models = served.pool.models[::-1]
        most = min(model.max_k for model in models)
        versions = [one.version for one in models]
        filters = PageAnswers(models[0]).filters()
        return About(name=served.name, versions=versions, most=most, filters=filters)

    async def written(kind: type[Answer], answer: Callable[[], dict[str, Any]]) -> Response:
        """Answers in a thread, where the answer is written too."""
        body = await work.run(lambda: kind.model_validate(answer()).model_dump_json())
        return Response(body, media_type="application/json")

    @routes.get("/users", response_model=Users)
    async def users(
        prefix: Annotated[Id, Query()] = "", n: Found = 10, version: Version = None
    ) -> Any:
        """Find users by the beginning of their ids."""
        model = served.model(version)
        return await written(Users, lambda: PageAnswers(model).users(prefix, n))

    @routes.get("/items", response_model=Items)
    async def items(
        words: Annotated[Id, Query()] = "", n: Found = 10, version: Version = None
    ) -> Any:
        """Find items by words of their titles, or by their ids."""
        model = served.model(version)
        return await written(Items, lambda: PageAnswers(model).items(words, n))

    @routes.get("/tokens", response_model=Tokens)
    async def tokens(
        filter: Annotated[Id, Query()],
        words: Annotated[Id, Query()] = "",
        n: Found = 10,
        version: Version = None,
    ) -> Any:
        """Find the names that a filter takes, by words of theirs."""
        model = served.model(version)
        return await written(Tokens, lambda: PageAnswers(model).tokens(filter, words, n))

    @routes.get("/similar", response_model=Similar)
    async def similar(item: Annotated[Id, Query()], k: Found = 10, version: Version = None) -> Any:
        """Find the items whose embeddings are most like that of one."""
        model = served.model(version)
        return await written(Similar, lambda: PageAnswers(model).similar(item, k))

    @routes.post(
        "/recommend", response_model=Recommended, openapi_extra={"requestBody": _RECOMMEND_REQUEST}
    )
    async def recommend(request: Request) -> Any:
        """Recommend items to a user, or for a taste."""
        body = await request.body()
        return await written(Recommended, lambda: _recommend(served, read_recommend_request(body)))

    return routes


def _recommend(served: ServedModel, request: RecommendRequest) -> dict[str, Any]:
    return PageAnswers(served.model(request.version)).recommend(
        request.user,
        request.items,
        request.exclude,
        request.only,
        request.k,
        is_new_only=request.exclude_seen,
    )
