"""The JSON API behind the page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from recsys.bundles.bundle import check_answers
from recsys.serving.label_scorer import LabelScorer
from recsys.serving.pool import Pool
from recsys.serving.predictor import Predictor
from recsys.serving.recommendations import LoadedBundle
from recsys.serving.requests import INVALID, NOT_FOUND, HttpError, wrong
from recsys.serving.served_model import Retriever, events_of, normal_id

_HIGHEST = 2**53 - 1
"""The largest integer that every reader of JSON reads exactly."""
PREFIX, BODY_BYTES = "/api", 256 << 10
_MOST_RESULTS, _LONGEST_ID, _LONGEST_TASTE, _MOST_ITEMS = 100, 1000, 500, 10_000
_SHOWN_HISTORY = 100

Id = Annotated[str, pydantic.StringConstraints(max_length=_LONGEST_ID)]
_Ids = Annotated[list[Id], pydantic.Field(max_length=_LONGEST_TASTE), pydantic.FailFast()]
_Candidates = Annotated[list[Id], pydantic.Field(max_length=_MOST_RESULTS), pydantic.FailFast()]
_Tokens = Annotated[list[Id], pydantic.Field(max_length=_MOST_RESULTS), pydantic.FailFast()]
_Values = Annotated[dict[Id, Id], pydantic.Field(max_length=_MOST_RESULTS)]
_Taste = Annotated[
    list[Id | _Values], pydantic.Field(max_length=_LONGEST_TASTE), pydantic.FailFast()
]
_Filters = Annotated[dict[Id, _Tokens], pydantic.Field(max_length=_MOST_RESULTS)]
_VersionNumber = Annotated[int, pydantic.Field(ge=0, le=_HIGHEST)]


class RecommendRequest(pydantic.BaseModel):
    """A request for recommendations, for a user, a history, or both."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    user: Id = ""
    """Id of a user."""
    items: _Taste = []
    """History items, the newest first, in place of the user's history: ids, or objects with the id
    `item` and values by raw column of events."""
    context: _Values = {}
    """Values of the query by raw column of events."""
    candidates: _Candidates = []
    """Ids of the items to rank, for a model that predicts labels; by default the 100 items with the
    most events."""
    exclude: _Ids = []
    """Ids of items to exclude."""
    only: _Filters = {}
    """Token names by filter; a recommended item has one of each filter's tokens."""
    k: int = pydantic.Field(10, ge=1, le=_MOST_ITEMS)
    """Number of items."""
    exclude_seen: bool | None = None
    """Whether to exclude seen items; by default true, unless the model's `repeats` is `include`."""
    version: _VersionNumber | None = None
    """A loaded version; the newest by default."""


def check_parameters(request: Request) -> None:
    """Refuses unknown parameters, which FastAPI ignores, and repeated ones.

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


Words = Annotated[Id, Query()]
Version = Annotated[_VersionNumber | None, Query(description="The newest by default.")]
Most = Annotated[int, Query(ge=1, le=_MOST_RESULTS, description="Most results.")]


def router(predictor: Predictor) -> APIRouter:
    """Returns the routes below `/api`."""
    pool = predictor.pool
    routes = APIRouter(prefix=PREFIX, tags=["page"], dependencies=[Depends(check_parameters)])

    async def respond(version: int | None, find: Callable[[Any], dict[str, Any]]) -> Response:
        """Computes and serializes the answer in a thread."""
        model = page_model(pool, version)

        def write() -> str:
            started = time.perf_counter()
            fields = find(model)
            milliseconds = round((time.perf_counter() - started) * 1e3, 3)
            return json.dumps({**fields, "version": model.version, "milliseconds": milliseconds})

        return Response(await predictor.work.run(write), media_type="application/json")

    @routes.get("/state")
    async def state() -> dict[str, Any]:
        """Tell whether a version is loaded, and why none is."""
        ready, sentence = pool.state()
        if ready and not isinstance(pool.model(), _SHOWN):
            ready, sentence = False, f"{pool.name} answers scores; this page shows lists of items."
        return {"name": pool.name, "ready": ready, "sentence": sentence}

    @routes.get("/about")
    async def about() -> dict[str, Any]:
        """Tell what is served."""
        newest = page_model(pool)
        is_ranked = isinstance(newest, LabelScorer)
        kind: Any = LabelScorer if is_ranked else Retriever
        models: list[Any] = [model for model in pool.models[::-1] if isinstance(model, kind)]
        return {
            "name": pool.name,
            "versions": [model.version for model in models],
            "most": _MOST_RESULTS if is_ranked else min(model.max_k for model in models),
            "filters": {} if is_ranked else newest.filters.feature_of,
            "context": {name: column.type for name, column in newest.events.context.items()},
            "labels": newest.labels if is_ranked else [],
        }

    @routes.get("/users")
    async def users(prefix: Words = "", n: Most = 10, version: Version = None) -> Any:
        """Find users by the beginning of their ids."""

        def find(model: PageModel) -> dict[str, Any]:
            ids = model.catalogue.find_users(normal_id(prefix), n)
            return {"users": [{"id": id_} for id_ in ids]}

        return await respond(version, find)

    @routes.get("/items")
    async def items(words: Words = "", n: Most = 10, version: Version = None) -> Any:
        """Find items by words of their titles, or by their ids."""
        return await respond(
            version,
            lambda model: {"items": model.catalogue.find_items(normal_id(words), n)},
        )

    @routes.get("/tokens")
    async def tokens(filter: Words, words: Id = "", n: Most = 10, version: Version = None) -> Any:
        """Find the values of a filter by words."""

        def find(model: Retriever) -> dict[str, Any]:
            check_answers(model.bundle, model.answers, Retriever.answers)
            _check_filters(model, [filter])
            names = model.filters.tokens(filter, normal_id(words), n)
            return {"tokens": [{"id": name} for name in names]}

        return await respond(version, find)

    @routes.get("/similar")
    async def similar(item: Words, k: Most = 10, version: Version = None) -> Any:
        """Find the items with the most similar embeddings."""

        def find(model: Retriever) -> dict[str, Any]:
            check_answers(model.bundle, model.answers, Retriever.answers)
            [row] = model.catalogue.item_rows([normal_id(item)])
            if not row:
                rule = "The item must be in the catalogue of the model."
                cure = "GET /api/items?words=… finds items."
                raise HttpError(NOT_FOUND, "R567", rule, cure, item)
            [shown] = model.catalogue.shown([row])
            return {"item": shown, "items": model.catalogue.similar(row, k)}

        return await respond(version, find)

    @routes.post("/recommend")
    async def recommend(wish: RecommendRequest) -> Any:
        """Recommend items to a user, or for a history; or rank candidates by predicted labels."""
        return await respond(wish.version, lambda model: answer(model, wish))

    return routes


PageModel = Retriever | LabelScorer
_SHOWN = (Retriever, LabelScorer)


def page_model(pool: Pool, version: int | None = None) -> Any:
    """Returns a version that the page can show, a `PageModel`; the newest by default.

    Raises:
        UsageError: It answers only scores of pairs (R545).
    """
    model = pool.model(version)
    if not isinstance(model, _SHOWN):
        check_answers(model.bundle, model.answers, Retriever.answers)
    return model


def answer(model: PageModel, wish: RecommendRequest) -> dict[str, Any]:
    """Returns the best items for a user or a history, or candidates by the predicted labels.

    Raises:
        HttpError: A filter is unknown (400).
        UsageError: As `LoadedBundle.recommend` and `rank`.
    """
    bundle, catalogue = LoadedBundle(model), model.catalogue
    given = events_of(wish.items)[0]
    taste = catalogue.item_rows([normal_id(id_) for id_ in given])
    query: dict[str, Any] = {"k": wish.k, "history": wish.items, "context": wish.context}
    found: Any
    if isinstance(model, LabelScorer):
        popular = [one["id"] for one in catalogue.find_items("", _MOST_RESULTS)]
        items = [id_ for id_ in wish.candidates or popular if id_ not in wish.exclude]
        found = bundle.rank(wish.user, items, **query)
        more: dict[str, Any] = {"source": "labels"}
        history = [row for row in taste if row]
    else:
        _check_filters(model, wish.only)
        filters = {model.filters.feature_of[name]: tokens for name, tokens in wish.only.items()}
        query |= {"exclude": wish.exclude, "exclude_seen": wish.exclude_seen, "filters": filters}
        found = bundle.recommend(wish.user, **query)
        more = {"source": found.source, "stage": found.stage}
        history = catalogue.item_rows([item.id for item in found.history])
    rows = catalogue.item_rows([item.id for item in found])
    shown = zip(found, catalogue.shown(rows), strict=True)
    return {
        "known": found.known,
        **more,
        "history": catalogue.shown(history[:_SHOWN_HISTORY]),
        "unknown_items": [id_ for id_, row in zip(given, taste, strict=True) if not row],
        # An unknown item has a row without a title.
        "items": [
            {
                **of_row,
                "id": item.id,
                "title": of_row["title"] or item.id,
                "score": item.score,
                "scores": item.scores,
            }
            for item, of_row in shown
        ],
        "missing": found.missing,
        "unknown": found.unknown,
    }


def _check_filters(model: Retriever, names: Iterable[str]) -> None:
    for name in names:
        if name not in model.filters.feature_of:
            known = ", ".join(model.filters.feature_of) or "none: the model has none"
            rule, cure = f"A filter must be one of {known}.", "GET /api/about lists them."
            raise wrong("R567", rule, cure, name)
