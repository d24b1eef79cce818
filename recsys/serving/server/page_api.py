"""The JSON API behind the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from recsys.errors import UsageError
from recsys.serving.retriever import Retriever, normal_id
from recsys.serving.server.http_errors import (
    BAD_REQUEST,
    INVALID,
    JSON,
    NOT_FOUND,
    HttpError,
    documented,
    too_large,
)
from recsys.serving.server.limits import MIB, SMALL_BYTES, read_object
from recsys.serving.server.micro_batcher import MicroBatcher
from recsys.serving.server.pool import Pool

_HIGHEST = 2**53 - 1
"""What every reader of JSON reads exactly."""
_MOST_RESULTS, _LONGEST_ID, _LONGEST_TASTE, _MOST_ITEMS = 100, 1000, 500, 10_000
_SHOWN_HISTORY = 100


def _check_size(value: Any) -> Any:
    """Refuses a long list or object before each of its elements becomes an error of its own."""
    if isinstance(value, list | dict) and len(value) > _LONGEST_TASTE:
        raise ValueError(f"at most {_LONGEST_TASTE} elements may be given, not {len(value):,}")
    return value


Id = Annotated[str, pydantic.StringConstraints(max_length=_LONGEST_ID)]
_Short = pydantic.BeforeValidator(_check_size)
_Ids = Annotated[list[Id], pydantic.FailFast()]
_Taste = Annotated[_Ids, pydantic.Field(max_length=_LONGEST_TASTE), _Short]
_Tokens = Annotated[_Ids, pydantic.Field(max_length=_MOST_RESULTS), _Short]
_Filters = Annotated[dict[Id, _Tokens], pydantic.Field(max_length=_MOST_RESULTS), _Short]
_VersionNumber = Annotated[int, pydantic.Field(ge=0, le=_HIGHEST)]


class RecommendRequest(pydantic.BaseModel):
    """A request for recommendations for a user, a taste, or a user with another taste."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    user: Id = ""
    """Id of a user."""
    items: _Taste = []
    """Ids of items that are liked, the newest first, in place of the user's own."""
    exclude: _Taste = []
    """Ids of items that are not wanted."""
    only: _Filters = {}
    """Names of tokens by filter: every item has one of each filter."""
    k: int = pydantic.Field(10, ge=1, le=_MOST_ITEMS)
    """How many items."""
    exclude_seen: bool | None = None
    """Whether what the user did is left out; by default as the model's config has it:
    yes, unless `repeats` is `include`."""
    version: _VersionNumber | None = None
    """One that is loaded; the newest by default."""


def read_recommend_request(body: bytes) -> RecommendRequest:
    """Returns the request that a body holds.

    Raises:
        HttpError: It is too large (413), no JSON (400), or breaks a rule (422): the first
            one is reported.
    """
    if len(body) > MIB:
        raise too_large("bytes of a recommend request", MIB, len(body))
    fields = read_object(body)
    for name in fields:  # Before each of many becomes an error of its own.
        if name not in RecommendRequest.model_fields:
            rule = f"The fields are {', '.join(RecommendRequest.model_fields)}"
            raise invalid("body", rule, name)
    try:
        return RecommendRequest.model_validate(fields)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["body", *map(str, first["loc"])])
        raise invalid(where, first["msg"], first["input"]) from None


def check_parameters(request: Request) -> None:
    """Refuses a parameter that the route doesn't have, which FastAPI ignores, or has twice.

    Raises:
        HttpError: There is one (422).
    """
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known or given.count(name) > 1:
            rule = f"The parameters are {', '.join(known) or 'none'}, each at most once"
            raise invalid("query", rule, name)


def invalid(where: str, rule: str, received: Any) -> HttpError:
    """Returns the error of a parameter, or a field of a body, that breaks a rule."""
    cure = "See GET /openapi.json for the rules."
    return HttpError(INVALID, "R569", f"{where}: {rule}.", cure, received)


class Named(pydantic.BaseModel):
    """A user or a token."""

    id: str


class CatalogueItem(Named):
    """An item as people see it."""

    title: str
    features: dict[str, list[str]]


class RankedItem(CatalogueItem):
    """An item with the score that put it where it is."""

    score: float


class Answer(pydantic.BaseModel):
    """What every answer tells."""

    version: int
    """The version that answered."""
    milliseconds: float
    """How long it took, without the network."""


class UsersAnswer(Answer):
    """Users that were found."""

    users: list[Named]


class TokensAnswer(Answer):
    """Tokens that were found, those of the most items first."""

    tokens: list[Named]


class ItemsAnswer(Answer):
    """Items that were found, those with the most training events first."""

    items: list[CatalogueItem]


class Similar(Answer):
    """Items like one."""

    item: CatalogueItem
    items: list[RankedItem]


class Recommended(Answer):
    """Items for a user or a taste, the best first."""

    known: bool
    """Whether the model knows the user."""
    source: str
    """What the answer rests on: `user`, `history`, `features` or `popularity`."""
    history: list[CatalogueItem]
    """What the recommendation is made of, the newest first."""
    unknown_items: list[str]
    """Ids of the request that are no items."""
    items: list[RankedItem]


class State(pydantic.BaseModel):
    """Whether a version is ready to answer."""

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


Words = Annotated[Id, Query()]
Version = Annotated[_VersionNumber | None, Query(description="The newest by default.")]
Most = Annotated[int, Query(ge=1, le=_MOST_RESULTS, description="Most results.")]
_BODY = {"required": True, "content": {JSON: {"schema": RecommendRequest.model_json_schema()}}}


def router(pool: Pool, work: MicroBatcher) -> APIRouter:
    """Returns the routes below `/api`."""
    responses = documented(400, 404, 408, 413, 415, 421, 422, 429, 503)
    routes = APIRouter(
        prefix="/api", tags=["page"], responses=responses, dependencies=[Depends(check_parameters)]
    )

    async def respond(
        kind: type[Answer], version: int | None, find: Callable[[Retriever], dict[str, Any]]
    ) -> Response:
        """Answers in a thread, where the answer is written too."""
        model: Retriever = pool.model(version)

        def write() -> str:
            started = time.perf_counter()
            fields = find(model)
            milliseconds = round((time.perf_counter() - started) * 1e3, 3)
            fields |= {"version": model.version, "milliseconds": milliseconds}
            return kind.model_validate(fields).model_dump_json()

        return Response(await work.run(write), media_type=JSON)

    @routes.get("/state")
    async def state() -> State:
        """Tell whether a version is loaded, and why none is."""
        ready, sentence = pool.state()
        return State(name=pool.name, ready=ready, sentence=sentence)

    @routes.get("/about")
    async def about() -> About:
        """Tell what is served."""
        filters = pool.model().filters.feature_of
        models = pool.models[::-1]
        versions = [model.version for model in models]
        most = min(model.max_k for model in models)
        return About(name=pool.name, versions=versions, most=most, filters=filters)

    @routes.get("/users", response_model=UsersAnswer)
    async def users(prefix: Words = "", n: Most = 10, version: Version = None) -> Any:
        """Find users by the beginning of their ids."""

        def find(model: Retriever) -> dict[str, Any]:
            ids = model.catalogue.find_users(normal_id(prefix), n)
            return {"users": [{"id": id_} for id_ in ids]}

        return await respond(UsersAnswer, version, find)

    @routes.get("/items", response_model=ItemsAnswer)
    async def items(words: Words = "", n: Most = 10, version: Version = None) -> Any:
        """Find items by words of their titles, or by their ids."""
        return await respond(
            ItemsAnswer,
            version,
            lambda model: {"items": model.catalogue.find_items(normal_id(words), n)},
        )

    @routes.get("/tokens", response_model=TokensAnswer)
    async def tokens(filter: Words, words: Id = "", n: Most = 10, version: Version = None) -> Any:
        """Find the names that a filter takes, by words of theirs."""

        def find(model: Retriever) -> dict[str, Any]:
            _check_filters(model, [filter])
            names = model.filters.tokens(filter, normal_id(words), n)
            return {"tokens": [{"id": name} for name in names]}

        return await respond(TokensAnswer, version, find)

    @routes.get("/similar", response_model=Similar)
    async def similar(item: Words, k: Most = 10, version: Version = None) -> Any:
        """Find the items whose embeddings are most like that of one."""

        def find(model: Retriever) -> dict[str, Any]:
            [row] = model.catalogue.item_rows([normal_id(item)])
            if not row:
                rule = "The item must be in the catalogue of the model."
                cure = "GET /api/items?words=… finds items."
                raise HttpError(NOT_FOUND, "R567", rule, cure, item)
            [shown] = model.catalogue.shown([row])
            return {"item": shown, "items": model.catalogue.similar(row, k)}

        return await respond(Similar, version, find)

    @routes.post("/recommend", response_model=Recommended, openapi_extra={"requestBody": _BODY})
    async def recommend(request: Request) -> Any:
        """Recommend items to a user, or for a taste."""
        body = await request.body()
        if len(body) > SMALL_BYTES:
            wish = await work.run(lambda: read_recommend_request(body))
        else:
            wish = read_recommend_request(body)
        return await respond(Recommended, wish.version, lambda model: recommended(model, wish))

    return routes


def recommended(model: Retriever, wish: RecommendRequest) -> dict[str, Any]:
    """Returns the best items of a user, or of a taste: the fields of `Recommended`.

    Raises:
        HttpError: The model can't give so many, has no such filter, or no item has a value.
    """
    _check_filters(model, wish.only)
    if wish.k > model.max_k:
        rule = f"This model answers with at most {model.max_k} items."
        cure = "Request fewer, or raise export.k in the config and run again: recsys run."
        raise HttpError(BAD_REQUEST, "R567", rule, cure, wish.k)
    try:
        inputs = model.query_inputs(
            [wish.user],
            history=wish.items,
            exclude=wish.exclude,
            only=wish.only,
            exclude_seen=wish.exclude_seen,
        )
    except UsageError as error:
        raise HttpError.of(BAD_REQUEST, error) from None
    ranked = model.rank(inputs, wish.k)
    rows = ranked.rows[0][ranked.rows[0] > 0]
    taste = model.catalogue.item_rows([normal_id(id_) for id_ in wish.items])
    history = taste or model.histories([wish.user])[0]
    return {
        "known": bool(ranked.known[0]),
        "source": ranked.source[0].decode(),
        "history": model.catalogue.shown([row for row in history if row][:_SHOWN_HISTORY]),
        "unknown_items": [id_ for id_, row in zip(wish.items, taste, strict=True) if not row],
        "items": model.catalogue.shown(rows, ranked.scores[0].tolist()),
    }


def _check_filters(model: Retriever, names: Iterable[str]) -> None:
    for name in names:
        if name not in model.filters.feature_of:
            known = ", ".join(model.filters.feature_of) or "none: the model has none"
            rule, cure = f"A filter must be one of {known}.", "GET /api/about lists them."
            raise HttpError(BAD_REQUEST, "R567", rule, cure, name)
