"""The routes of TensorFlow Serving: predict, status and metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from recsys.bundles.signatures import Arrays
from recsys.serving.retriever import Retriever
from recsys.serving.server import openapi
from recsys.serving.server.http_errors import BAD_REQUEST, HttpError
from recsys.serving.server.limits import Limits
from recsys.serving.server.messages import PredictRequest, read_request, write_answer
from recsys.serving.server.micro_batcher import MicroBatcher, ask_together, may_join
from recsys.serving.server.served_models import ServedModel

_JSON = "application/json"
_SMALL_BYTES = 16 << 10

# Documented, and not enforced: FastAPI would report it in a form of its own.
Version = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9]{1,18}$"})]


def router(served: ServedModel, work: MicroBatcher, limits: Limits) -> APIRouter:
    """Returns the routes below `/v1/models`."""
    routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"])

    async def answer(request: Request, name: str, version: str | None) -> Response:
        model = served.named(name, version)
        body = await request.body()
        if len(body) > _SMALL_BYTES:
            return Response(await work.run(lambda: predict(model, body, limits)), media_type=_JSON)
        # So small that a thread would take longer to wake up than to read it.
        question = read_request(body, model.signatures, limits)
        if not may_join(question):
            content = await work.run(lambda: answer_all(model, [question])[0])
        else:
            kind = (id(model), question.signature)
            content = await work.together(kind, question, lambda some: answer_all(model, some))
        return Response(content, media_type=_JSON)

    @routes.post("/{name}:predict", **openapi.PREDICT)
    async def predict_newest(request: Request, name: str) -> Response:
        """Ask the newest version."""
        return await answer(request, name, None)

    @routes.post("/{name}/versions/{version}:predict", **openapi.PREDICT)
    async def predict_version(request: Request, name: str, version: Version) -> Response:
        """Ask one version."""
        return await answer(request, name, version)

    @routes.get("/{name}/metadata", **openapi.METADATA)
    async def metadata_of_newest(name: str) -> dict[str, Any]:
        """List the signatures of the newest version."""
        return _metadata(served, served.named(name))

    @routes.get("/{name}/versions/{version}/metadata", **openapi.METADATA)
    async def metadata_of_version(name: str, version: Version) -> dict[str, Any]:
        """List the signatures of one version."""
        return _metadata(served, served.named(name, version))

    @routes.get("/{name}", **openapi.STATUS)
    async def status_of_all(name: str) -> dict[str, Any]:
        """Tell the state of every version."""
        return {"model_version_status": served.statuses(served.number(name, None))}

    @routes.get("/{name}/versions/{version}", **openapi.STATUS)
    async def status_of_version(name: str, version: Version) -> dict[str, Any]:
        """Tell the state of one version."""
        return {"model_version_status": served.statuses(served.number(name, version))}

    return routes


def predict(model: Retriever, body: bytes, limits: Limits) -> bytes:
    """Returns the body of the answer to the body of a predict request.

    Raises:
        HttpError: The request asks for what the model can't answer.
    """
    return answer_all(model, [read_request(body, model.signatures, limits)])[0]


def answer_all(model: Retriever, questions: Sequence[PredictRequest]) -> list[bytes]:
    """Returns the bodies of the answers to several questions of one signature.

    Raises:
        HttpError: One of them asks for what the model can't answer.
    """
    answers = ask_together(model, questions)
    for question, outputs in zip(questions, answers, strict=True):
        if question.is_by_row:
            _check_rows(question, outputs)
    return [
        write_answer(outputs, question.is_by_row)
        for question, outputs in zip(questions, answers, strict=True)
    ]


def _check_rows(question: PredictRequest, outputs: Arrays) -> None:
    """Checks that the outputs have rows."""
    sizes = {name: len(values) if values.ndim else None for name, values in outputs.items()}
    if len(set(sizes.values())) > 1 or None in sizes.values():
        raise HttpError(
            BAD_REQUEST,
            "R552",
            f"The outputs of {question.signature!r} must have one number of rows to be"
            " answered row by row.",
            "Ask for columns: 'inputs' in place of 'instances'.",
            sizes,
        )


def _metadata(served: ServedModel, model: Retriever) -> dict[str, Any]:
    spec = {"name": served.name, "signature_name": "", "version": str(model.version)}
    return {
        "model_spec": spec,
        "metadata": {"signature_def": {"signature_def": model.metadata}},
    }
