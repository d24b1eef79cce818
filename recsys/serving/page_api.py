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
from recsys.savedmodel.signatures import SCORE
from recsys.serving.label_scorer import LabelScorer, RankQuery
from recsys.serving.pool import Pool
from recsys.serving.predictor import Predictor
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

        def find(model: PageModel) -> dict[str, Any]:
            return (
                ranked(model, wish) if isinstance(model, LabelScorer) else recommended(model, wish)
            )

        return await respond(wish.version, find)

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


def ranked(model: LabelScorer, wish: RecommendRequest) -> dict[str, Any]:
    """Returns the candidates in the order of the first label, with the scores of each label.

    Raises:
        UsageError: A column is unknown, or a value is invalid (R549).
    """
    catalogue = model.catalogue
    popular = [one["id"] for one in catalogue.find_items("", _MOST_RESULTS)]
    items = [id_ for id_ in wish.candidates or popular if id_ not in wish.exclude]
    answer = model.rank(RankQuery(wish.user, items, wish.k, wish.context, wish.items))
    ids = [normal_id(items[place]) for place in answer.places.tolist()]
    rows = catalogue.item_rows(ids)
    scores = {label: values.tolist() for label, values in answer.scores.items()}
    # An unknown item has a row without a title.
    shown = catalogue.shown(rows, scores[model.labels[0]])
    given, _ = events_of(wish.items)
    taste = catalogue.item_rows([normal_id(id_) for id_ in given])
    return {
        "known": answer.known,
        "source": "labels",
        "history": catalogue.shown([row for row in taste if row][:_SHOWN_HISTORY]),
        "unknown_items": [id_ for id_, row in zip(given, taste, strict=True) if not row],
        "items": [
            {
                **item,
                "id": id_,
                "title": item["title"] or id_,
                "scores": {label: values[place] for label, values in scores.items()},
            }
            for place, (id_, item) in enumerate(zip(ids, shown, strict=True))
        ],
        "missing": answer.missing,
        "unknown": answer.unknown,
    }


def recommended(model: Retriever, wish: RecommendRequest) -> dict[str, Any]:
    """Returns the best items for a user or a history: the fields of `Recommended`.

    Raises:
        HttpError: `k` is too large, a filter is unknown, or no item has its value.
    """
    _check_filters(model, wish.only)
    if wish.k > model.max_k:
        rule = f"This model answers with at most {model.max_k} items."
        cure = "Request fewer, or raise export.k in the config and run again: recsys run."
        raise wrong("R567", rule, cure, wish.k)
    items, attributes = events_of(wish.items)
    inputs = model.query_inputs(
        [wish.user],
        history=items,
        exclude=wish.exclude,
        only=wish.only,
        exclude_seen=wish.exclude_seen,
        context={name: [value] for name, value in wish.context.items()},
        attributes=attributes,
    )
    ranked = model.rank(inputs, wish.k)
    rows = ranked.rows[0][ranked.rows[0] > 0]
    shown = model.catalogue.shown(rows, ranked.scores[0].tolist())
    for place, item in enumerate(shown if ranked.more else ()):
        of_labels = {name: float(values[0, place]) for name, values in ranked.more.items()}
        item["scores"] = {SCORE: item["score"], **of_labels}
    replaced = {}
    if isinstance(model.scorer, LabelScorer):
        values = {name: [value] for name, value in wish.context.items()}
        replaced = dict(zip(("missing", "unknown"), model.scorer.defaults(values), strict=True))
    taste = model.catalogue.item_rows([normal_id(id_) for id_ in items])
    history = taste or model.histories([wish.user])[0]
    return {
        "known": bool(ranked.known[0]),
        "source": ranked.source[0].decode(),
        "history": model.catalogue.shown([row for row in history if row][:_SHOWN_HISTORY]),
        "unknown_items": [id_ for id_, row in zip(items, taste, strict=True) if not row],
        "items": shown,
        "stage": ranked.stage,
        **replaced,
    }


def _check_filters(model: Retriever, names: Iterable[str]) -> None:
    for name in names:
        if name not in model.filters.feature_of:
            known = ", ".join(model.filters.feature_of) or "none: the model has none"
            rule, cure = f"A filter must be one of {known}.", "GET /api/about lists them."
            raise wrong("R567", rule, cure, name)
