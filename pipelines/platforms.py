"""The platform that a pipeline runs on.

On this machine a pipeline can read ML Metadata and its files when it is built. Elsewhere, as
on Kubeflow (`pipelines.kubeflow`), it can't, and the platform defines what it does instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from tfx.dsl.compiler.constants import PIPELINE_RUN_ID_PARAMETER_NAME
from tfx.dsl.components.common.resolver import Resolver
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import Artifact, BaseChannel

from components.resolvers import EarlierStatistics, LatestBlessed, Previous, WarmBase
from recsys.errors import RecsysError


class Platform:
    """This machine, by our own runner.

    Attributes:
        run_id: Placeholder or value of the id of a run.
        is_cached: Whether the results of unchanged steps are reused.
    """

    run_id: RuntimeParameter | str = RuntimeParameter(
        name=PIPELINE_RUN_ID_PARAMETER_NAME, ptype=str
    )
    is_cached = True

    def artifact_root(self, folder: Path) -> str:
        """Returns the address of the artifacts' folder."""
        return str(folder)

    def digest(self, of_now: Callable[[], str]) -> str:
        """Returns the cache key of the raw files; `of_now` computes their digest now."""
        return of_now()

    def schema_file(self, file: Path, root: Path) -> Path:
        """Returns a copy of a committed schema whose path changes with its content.

        The cache key of TFX's ImportSchemaGen has the path of the file, not what is in
        it: with the file itself an edited schema would never be read.

        Raises:
            RecsysError: The file can't be read.
        """
        try:
            content = file.read_bytes()
        except OSError as error:
            rule = f"{str(file)!r} must be a committed TFDV schema."
            cure = (
                "Write it with `recsys freeze-schema`, correct data.gate.schema_dir, or remove"
                " that key to infer the schema from the data."
            )
            raise RecsysError("R243", rule, cure, error.strerror) from None
        pinned = root / "schemas" / hashlib.sha256(content).hexdigest()[:16] / file.name
        pinned.parent.mkdir(parents=True, exist_ok=True)
        pinned.write_bytes(content)
        return pinned

    def earlier_statistics(self, what: str, current: BaseChannel) -> Resolver | None:
        """Returns the node of `EarlierStatistics`; None if earlier ones can't be found."""
        return EarlierStatistics(what, current)

    def previous(
        self, name: str, kind: type[Artifact], parameters: dict[str, str], **inputs: BaseChannel
    ) -> Resolver | None:
        """Returns the node of `Previous`; None if an earlier one can't be found."""
        return Previous(name, kind, parameters, **inputs)

    def latest_blessed(self, current: BaseChannel) -> Resolver:
        """Returns the node of `LatestBlessed`, or the platform's nearest equivalent."""
        return LatestBlessed(current)

    def warm_base(self, parameters: dict[str, str], **inputs: BaseChannel) -> Resolver:
        """Returns the node of `WarmBase`, or the platform's nearest equivalent."""
        return WarmBase(parameters, **inputs)


LOCAL = Platform()
