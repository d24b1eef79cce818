"""The routes of TensorFlow Serving: predict, status and metadata."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from recsys.serving.pool import Pool
from recsys.serving.server import schemas
from recsys.serving.server.limits import Limits
from recsys.serving.server.refusals import BAD_REQUEST, NOT_FOUND, UNAVAILABLE, Refusal
from recsys.serving.server.signature import Arrays, Model, Signature
from recsys.serving.server.tensors import Question, read_question, write_answer
from recsys.serving.server.work import Work

_HIGHEST_VERSION = 2**63 - 1
_JSON = "application/json"

# Told, and not enforced: what it refuses would be told in FastAPI's way.
Version = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9]{1,18}$"})]


class Served:
    """What is served under which name.

    Args:
        name: Name of the model.
        pool: Its versions.
    """

    def __init__(self, name: str, pool: Pool[Any]) -> None:
        self.name, self.pool = name, pool

    def model(self, version: int | None = None) -> Any:
        """Returns a loaded version, the newest by default.

        Raises:
            Refusal: It isn't loaded (404), or none is yet (503).
        """
        models = self.pool.models
        if not models:
            raise self.nothing_yet()
        if version is None:
            return models[-1]
        for model in models:
            if model.version == version:
                return model
        raise Refusal(
            NOT_FOUND,
            "R558",
            f"Servable not found for request: Specific({self.name}, {version}).",
            "Ask for a version that is loaded, or for none, which is the newest.",
            [model.version for model in models],
        )

    def named(self, name: str, version: str | None = None) -> Any:
        """Returns the version that a path names, both as text."""
        number = self.number(name, version)
        return self.model(number)

    def number(self, name: str, version: str | None) -> int | None:
        """Returns the version that a path names, loaded or not.

        Raises:
            Refusal: There is no model of this name (404), or that is no version (400).
        """
        if name != self.name:
            raise Refusal(
                NOT_FOUND,
                "R558",
                f"Servable not found for request: Latest({name[:80]}).",
                f"The model that is served here is {self.name!r}.",
            )
        if version is None:
            return None
        is_number = version.isascii() and version.isdecimal() and len(version) < 20
        if not is_number or int(version) > _HIGHEST_VERSION:
            raise Refusal(
                BAD_REQUEST,
                "R564",
                "A version in a path must be a whole number of 64 bits.",
                "Correct the path.",
                version,
            )
        return int(version)

    def nothing_yet(self) -> Refusal:
        """Returns what a client hears before there is a version."""
        failures = self.pool.failures
        return Refusal(
            UNAVAILABLE,
            "R559",
            f"A version of {self.name!r} must be loaded before it can answer.",
            "Push a model (recsys run), or wait until it is loaded, and ask again.",
            {"loading": self.pool.loading, "refused": sorted(failures)},
            {"Retry-After": "5"},
        )

    def statuses(self, version: int | None) -> list[dict[str, Any]]:
        """Returns the state of one version, or of all, as TensorFlow Serving tells it.

        Raises:
            Refusal: The version is unknown.
        """
        states = {number: _status("END", str(e)) for number, e in self.pool.failures.items()}
        states |= {model.version: _status("AVAILABLE") for model in self.pool.models}
        loading = self.pool.loading
        if loading is not None and loading not in states:
            states[loading] = _status("LOADING")
        if not states:
            raise self.nothing_yet()
        numbers = sorted(states, reverse=True) if version is None else [version]
        if version is not None and version not in states:
            raise Refusal(
                NOT_FOUND,
                "R558",
                f"Could not find version {version} of model {self.name}.",
                "Ask without a version for those that there are.",
                sorted(states),
            )
        return [{"version": str(number), **states[number]} for number in numbers]


def _status(state: str, message: str = "") -> dict[str, Any]:
    code = "FAILED_PRECONDITION" if message else "OK"
    return {"state": state, "status": {"error_code": code, "error_message": message}}


def router(served: Served, work: Work, limits: Limits) -> APIRouter:
    """Returns the routes below `/v1/models`."""
    routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"])

    async def answer(request: Request, name: str, version: str | None) -> Response:
        model = served.named(name, version)
        body = await request.body()
        return Response(await work.run(lambda: predict(model, body, limits)), media_type=_JSON)

    @routes.post("/{name}:predict", **schemas.PREDICT)
    async def predict_newest(request: Request, name: str) -> Response:
        """Ask the newest version."""
        return await answer(request, name, None)

    @routes.post("/{name}/versions/{version}:predict", **schemas.PREDICT)
    async def predict_version(request: Request, name: str, version: Version) -> Response:
        """Ask one version."""
        return await answer(request, name, version)

    @routes.get("/{name}/metadata", **schemas.METADATA)
    async def metadata_of_newest(name: str) -> dict[str, Any]:
        """List the signatures of the newest version."""
        return _metadata(served, served.named(name))

    @routes.get("/{name}/versions/{version}/metadata", **schemas.METADATA)
    async def metadata_of_version(name: str, version: Version) -> dict[str, Any]:
        """List the signatures of one version."""
        return _metadata(served, served.named(name, version))

    @routes.get("/{name}", **schemas.STATUS)
    async def status_of_all(name: str) -> dict[str, Any]:
        """Tell the state of every version."""
        return {"model_version_status": served.statuses(served.number(name, None))}

    @routes.get("/{name}/versions/{version}", **schemas.STATUS)
    async def status_of_version(name: str, version: Version) -> dict[str, Any]:
        """Tell the state of one version."""
        return {"model_version_status": served.statuses(served.number(name, version))}

    return routes


def predict(model: Model, body: bytes, limits: Limits) -> bytes:
    """Returns the body of the answer to the body of a predict request.

    Raises:
        Refusal: The request asks for what the model can't answer.
    """
    question = read_question(body, model.signatures, limits)
    outputs = model.ask(question.signature, question.inputs)
    if question.is_by_row:
        _check_rows(question, outputs, model.signatures[question.signature])
    return write_answer(outputs, question.is_by_row)


def _check_rows(question: Question, outputs: Arrays, signature: Signature) -> None:
    """Checks that the outputs have rows."""
    sizes = {name: len(values) if values.ndim else None for name, values in outputs.items()}
    if len(set(sizes.values())) > 1 or None in sizes.values():
        raise Refusal(
            BAD_REQUEST,
            "R552",
            f"The outputs of {question.signature!r} must have one number of rows to be"
            " answered row by row.",
            "Ask for columns: 'inputs' in place of 'instances'.",
            sizes,
        )


def _metadata(served: Served, model: Model) -> dict[str, Any]:
    spec = {"name": served.name, "signature_name": "", "version": str(model.version)}
    return {
        "model_spec": spec,
        "metadata": {"signature_def": {"signature_def": model.metadata}},
    }
