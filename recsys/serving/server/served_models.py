"""The model that is served under a name, and the state of its versions."""

from __future__ import annotations

from typing import Any

from recsys.serving.pool import Pool
from recsys.serving.server.http_errors import BAD_REQUEST, NOT_FOUND, UNAVAILABLE, HttpError

_HIGHEST_VERSION = 2**63 - 1


class ServedModel:
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
            HttpError: It isn't loaded (404), or none is yet (503).
        """
        models = self.pool.models
        if not models:
            raise self.nothing_yet()
        if version is None:
            return models[-1]
        for model in models:
            if model.version == version:
                return model
        raise HttpError(
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
            HttpError: There is no model of this name (404), or that is no version (400).
        """
        if name != self.name:
            raise HttpError(
                NOT_FOUND,
                "R558",
                f"Servable not found for request: Latest({name[:80]}).",
                f"The model that is served here is {self.name!r}.",
            )
        if version is None:
            return None
        is_number = version.isascii() and version.isdecimal() and len(version) < 20
        if not is_number or int(version) > _HIGHEST_VERSION:
            raise HttpError(
                BAD_REQUEST,
                "R564",
                "A version in a path must be a whole number of 64 bits.",
                "Correct the path.",
                version,
            )
        return int(version)

    def nothing_yet(self) -> HttpError:
        """Returns what a client hears before there is a version."""
        failures = self.pool.failures
        return HttpError(
            UNAVAILABLE,
            "R559",
            f"A version of {self.name!r} must be loaded before it can answer.",
            "Push a model (recsys run), or wait until it is loaded, and ask again.",
            {"loading": self.pool.loading, "refused": sorted(failures)},
            {"Retry-After": "5"},
        )

    def state(self) -> tuple[bool, str]:
        """Returns whether a version answers, and what to tell people until one does."""
        if self.pool.models:
            return True, ""
        loading, failures = self.pool.loading, self.pool.failures
        if loading is not None:
            sentence = f"Version {loading} of {self.name} is being loaded."
        elif failures:
            newest = max(failures)
            sentence = (
                f"Version {newest} of {self.name} could not be loaded, and will be tried again."
                f" {failures[newest]}"
            )
        else:
            sentence = f"There is no model of the name {self.name} yet: recsys run pushes one."
        return False, f"{sentence} This page goes on by itself once a version is there."

    def statuses(self, version: int | None) -> list[dict[str, Any]]:
        """Returns the state of one version, or of all, as TensorFlow Serving tells it.

        Raises:
            HttpError: The version is unknown.
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
            raise HttpError(
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
