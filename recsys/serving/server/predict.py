"""The routes of TensorFlow Serving: predict, status and metadata."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from recsys.serving.retriever import Retriever
from recsys.serving.server.http_errors import JSON, documented
from recsys.serving.server.limits import SMALL_BYTES, Limits
from recsys.serving.server.messages import answer_together, read_request
from recsys.serving.server.micro_batcher import MicroBatcher
from recsys.serving.server.pool import Pool

# Documented, and not enforced: FastAPI would report it in a form of its own.
Version = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9]{1,18}$"})]


class Predict(pydantic.BaseModel):
    """Rows under `instances` or columns under `inputs`; bytes are `{"b64": …}`."""

    signature_name: str = "serving_default"
    instances: list[Any] = []
    inputs: Any = None


class Predictions(pydantic.BaseModel):
    """Rows under `predictions`, or columns under `outputs`."""

    predictions: list[Any] = []
    outputs: Any = None


class Status(pydantic.BaseModel):
    """Why a version is in its state."""

    error_code: str
    error_message: str


class VersionStatus(pydantic.BaseModel):
    """The state of a version."""

    version: str
    state: Literal["LOADING", "AVAILABLE", "END"]
    status: Status


class ModelStatus(pydantic.BaseModel):
    """The states of versions, the newest first."""

    model_version_status: list[VersionStatus]


_BODY = {"required": True, "content": {JSON: {"schema": Predict.model_json_schema()}}}
_DOCUMENTED: dict[str, Any] = {
    "responses": {200: {"model": Predictions}, **documented(429)},
    "response_model": None,
    "openapi_extra": {"requestBody": _BODY},
}


def router(pool: Pool, work: MicroBatcher, limits: Limits) -> APIRouter:
    """Returns the routes below `/v1/models`."""
    responses = documented(400, 404, 408, 413, 415, 421, 503)
    routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"], responses=responses)

    async def answer(request: Request, name: str, version: str | None) -> Response:
        model: Retriever = pool.model(pool.number(name, version))
        body = await request.body()

        def read_and_answer() -> bytes:
            return answer_together(model, [read_request(body, model.signatures, limits)])[0]

        if len(body) > SMALL_BYTES:
            return Response(await work.run(read_and_answer), media_type=JSON)
        read = read_request(body, model.signatures, limits)
        # Questions of a kind of their own are answered alone.
        kind = (id(model), read.signature) if read.may_join else object()
        content = await work.together(kind, read, lambda some: answer_together(model, some))
        return Response(content, media_type=JSON)

    @routes.post("/{name}:predict", **_DOCUMENTED)
    async def predict_newest(request: Request, name: str) -> Response:
        """Ask the newest version."""
        return await answer(request, name, None)

    @routes.post("/{name}/versions/{version}:predict", **_DOCUMENTED)
    async def predict_version(request: Request, name: str, version: Version) -> Response:
        """Ask one version."""
        return await answer(request, name, version)

    def metadata(name: str, version: str | None) -> dict[str, Any]:
        model = pool.model(pool.number(name, version))
        return {
            "model_spec": {"name": name, "signature_name": "", "version": str(model.version)},
            "metadata": {"signature_def": {"signature_def": model.metadata}},
        }

    @routes.get("/{name}/metadata")
    async def metadata_of_newest(name: str) -> dict[str, Any]:
        """List the signatures of the newest version."""
        return metadata(name, None)

    @routes.get("/{name}/versions/{version}/metadata")
    async def metadata_of_version(name: str, version: Version) -> dict[str, Any]:
        """List the signatures of one version."""
        return metadata(name, version)

    @routes.get("/{name}", response_model=ModelStatus)
    async def status_of_all(name: str) -> Any:
        """Tell the state of every version."""
        return {"model_version_status": pool.statuses(pool.number(name, None))}

    @routes.get("/{name}/versions/{version}", response_model=ModelStatus)
    async def status_of_version(name: str, version: Version) -> Any:
        """Tell the state of one version."""
        return {"model_version_status": pool.statuses(pool.number(name, version))}

    return routes
