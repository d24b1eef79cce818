"""Recommendations, and rankings of given items, from raw ids and raw columns: REST and gRPC."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Annotated, Any, TypeVar

import numpy as np
import pydantic
from fastapi import APIRouter, Request
from fastapi.responses import Response
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from recsys.bundles.bundle import check_answers
from recsys.errors import UsageError
from recsys.savedmodel.signatures import SCORE
from recsys.serving.label_scorer import LabelScorer, RankedItems, RankQuery
from recsys.serving.page_api import Id, invalid
from recsys.serving.predictor import Predictor
from recsys.serving.ranking import Ranking
from recsys.serving.recommendations import LoadedBundle
from recsys.serving.requests import too_large
from recsys.serving.served_model import EVENT_ITEM, ServedModel, normal_id

_Id = Id | int


def _plain(value: Any) -> Any:
    """Returns a value of the context; raises ValueError for objects, deep lists, and NaN."""
    values = value if isinstance(value, list) else [value]
    parts = [part for one in values for part in (one if isinstance(one, list) else [one])]
    if any(isinstance(part, list | dict) for part in parts):
        raise ValueError("must be a value, or a list of one value for each item")
    if any(isinstance(part, float) and not math.isfinite(part) for part in parts):
        raise ValueError("must have finite numbers")
    return value


_Values = dict[Id, Annotated[Any, pydantic.AfterValidator(_plain)]]


class _Query(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    user: _Id = ""
    """Id of the user; empty: none."""
    context: _Values = {}
    """Values of the query by raw column of events."""
    history: Annotated[list[_Id | _Values], pydantic.FailFast()] = []
    """Items, the newest first, in place of the user's history: ids, or objects with the id `item`
    and values by raw column of events."""
    features: dict[Id, Id | list[Id]] = {}
    """Raw values of the user by column, in place of the stored features."""
    impression: Id | None = None
    """Id of what is shown, for the log; by default a new one."""


class RankRequest(_Query):
    """A request to rank items for a user; `context` may have a list of one value per item."""

    items: Annotated[list[_Id], pydantic.Field(min_length=1), pydantic.FailFast()]
    """Ids of the items to rank."""
    k: Annotated[int, pydantic.Field(ge=1)] | None = None
    """Number of items to return; all by default."""


class ListRequest(_Query):
    """A request to recommend items to a user."""

    k: Annotated[int, pydantic.Field(ge=1)] = 10
    """Number of items."""
    exclude: Annotated[list[_Id], pydantic.FailFast()] = []
    """Ids of items to exclude."""
    filters: dict[Id, Id | list[Id]] = {}
    """Values by feature; an item has one of each feature's."""
    exclude_seen: bool | None = None
    """Whether to exclude seen items; by default true, unless the model's `repeats` is `include`."""


def _body(kind: type[pydantic.BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


_Request = TypeVar("_Request", bound=_Query)
_Answer = Callable[[Predictor, ServedModel, _Request], dict[str, Any]]


def router(predictor: Predictor) -> APIRouter:
    """Returns the routes below `/v1/models`; each takes a version in its path or as a parameter."""
    routes = APIRouter(prefix="/v1/models", tags=["ranking"])

    def add(action: str, kind: type[_Request], answer: _Answer[_Request]) -> None:
        async def respond(request: Request, name: str, version: str = "") -> Response:
            body = await request.body()

            def fields() -> bytes:
                model, wish = predictor.pool.find(name, version), read_request(kind, body)
                return json.dumps(answer(predictor, model, wish)).encode()

            return Response(await predictor.work.run(fields), media_type="application/json")

        for path in (f"/{{name}}:{action}", f"/{{name}}/versions/{{version}}:{action}"):
            add_route = routes.post(path, description=kind.__doc__, openapi_extra=_body(kind))
            add_route(respond)

    add("rank", RankRequest, _ranked)
    add("recommend", ListRequest, recommend_and_log)
    return routes


def read_request(kind: type[_Request], body: bytes) -> _Request:
    """Returns the request in a body.

    Raises:
        HttpError: A field is missing, unknown or invalid (422); it is named.
    """
    return _validated(kind.model_validate_json, body)


def _validated(validate: Callable[[Any], _Request], fields: Any) -> _Request:
    try:
        return validate(fields)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["body", *(str(part) for part in first["loc"])])
        raise invalid(where, first["msg"], first["input"]) from None


def _ranked(predictor: Predictor, model: ServedModel, wish: RankRequest) -> dict[str, Any]:
    query = RankQuery(
        normal_id(str(wish.user)),
        [normal_id(str(id_)) for id_ in wish.items],
        wish.k,
        wish.context,
        wish.history,
        {k: v if isinstance(v, list) else [v] for k, v in wish.features.items()},
    )
    ranked, impression = rank_and_log(predictor, model, query, wish.impression)
    fields = dataclasses.asdict(Ranking.of(query.user, query.items, ranked))
    del fields["user_id"]
    shown = {} if impression is None else {"impression": impression}
    return {"version": model.version, **fields, **shown}


def rank_and_log(
    predictor: Predictor, model: ServedModel, query: RankQuery, impression: str | None
) -> tuple[RankedItems, str | None]:
    """Returns the ranked items, and the id of the impression if they are logged.

    Raises:
        HttpError: The items are too many (413).
        UsageError: The model doesn't predict labels (R545), or as `LabelScorer.rank`.
    """
    if len(query.items) > predictor.limits.items:
        raise too_large("items", predictor.limits.items, len(query.items))
    ranked = label_scorer(model).rank(query)
    predictor.pool.metrics.context_defaults(ranked.missing, ranked.unknown)
    if predictor.log is None:
        return ranked, None
    return ranked, predictor.log.add(query, ranked, model.version, impression)


def recommend_and_log(
    predictor: Predictor, model: ServedModel, wish: ListRequest
) -> dict[str, Any]:
    """Returns the fields of an answer to a request for recommendations, which is logged.

    Raises:
        UsageError: As `LoadedBundle.recommend`.
    """
    options = wish.model_dump(exclude={"user", "impression"})
    found = LoadedBundle(model).recommend(wish.user, **options)
    predictor.pool.metrics.context_defaults(found.missing, found.unknown)
    names = ("known", "source", "stage", "missing", "unknown")
    fields = {"version": model.version, **{name: getattr(found, name) for name in names}}
    fields["items"] = [dataclasses.asdict(item) for item in found]
    if predictor.log is not None:
        query = RankQuery(found.user_id, [item.id for item in found], context=wish.context)
        scores = [{SCORE: item.score, **item.scores} for item in found]
        labels = scores[0] if scores else ()
        by_label = {name: np.array([one[name] for one in scores]) for name in labels}
        places, known = np.arange(len(scores)), np.ones(len(scores), bool)
        ranked = RankedItems(places, by_label, found.known, known, {}, {})
        impression = predictor.log.add(query, ranked, model.version, wish.impression)
        fields |= {} if impression is None else {"impression": impression}
    return fields


def label_scorer(model: ServedModel) -> LabelScorer:
    """Returns a model that predicts labels.

    Raises:
        UsageError: It doesn't (R545).
    """
    model = model.scorer
    check_answers(model.bundle, model.answers, LabelScorer.answers)
    if not isinstance(model, LabelScorer):
        rule = f"The bundle {str(model.bundle)!r} must predict labels to rank items here."
        raise UsageError("R545", rule, "Ask for the signature 'score'.", model.answers)
    return model


# --- gRPC


@functools.cache
def messages(name: str) -> Any:
    """Returns a message class of the gRPC service, from its FileDescriptorProto."""
    text = resources.files(__package__).joinpath("ranking.pbtxt").read_text("utf-8")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"recsys.{name}"))


async def _rank(predictor: Predictor, request: bytes) -> bytes:
    def answer() -> bytes:
        message = messages("RankRequest").FromString(request)
        model = predictor.pool.find(message.model, message.version)
        query = RankQuery(
            normal_id(message.user),
            list(map(normal_id, message.items)),
            message.k or None,
            {name: x[0] if len(x) == 1 else x for name, x in _lists(message.context).items()},
            _history(message),
            _lists(message.features),
        )
        ranked, impression = rank_and_log(predictor, model, query, message.impression or None)
        response = messages("RankResponse")(
            version=model.version,
            known=ranked.known,
            labels=list(ranked.scores),
            items=[query.items[place] for place in ranked.places.tolist()],
            known_items=ranked.known_items.tolist(),
            missing=ranked.missing,
            unknown=ranked.unknown,
            impression=impression or "",
        )
        for scores in ranked.scores.values():
            response.scores.add(values=scores.tolist())
        return bytes(response.SerializeToString())

    return await predictor.work.run(answer)


async def _recommend(predictor: Predictor, request: bytes) -> bytes:
    def answer() -> bytes:
        message = messages("RecommendRequest").FromString(request)
        model = predictor.pool.find(message.model, message.version)
        fields = {
            "user": message.user,
            **({"k": message.k} if message.k else {}),
            "context": dict(message.context),
            "history": _history(message),
            "features": _lists(message.features),
            "exclude": list(message.exclude),
            "filters": _lists(message.filters),
            "exclude_seen": message.exclude_seen if message.HasField("exclude_seen") else None,
            "impression": message.impression or None,
        }
        wish = _validated(ListRequest.model_validate, fields)
        response = messages("RecommendResponse")(**recommend_and_log(predictor, model, wish))
        return bytes(response.SerializeToString())

    return await predictor.work.run(answer)


def _history(message: Any) -> list[dict[str, str]]:
    return [{EVENT_ITEM: event.item, **event.attributes} for event in message.history]


def _lists(values: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: list(one.values) for name, one in values.items()}


METHODS: dict[str, Callable[[Predictor, bytes], Awaitable[bytes]]] = {
    "Rank": _rank,
    "Recommend": _recommend,
}
"""Methods of the gRPC service by name."""
