"""The records that retention uses: artifacts, executions, runs, and served versions.

ML Metadata is read elsewhere (`pipelines.clean`); from here on it is plain data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

State = Literal["live", "deleted", "other"]


@dataclasses.dataclass(frozen=True)
class Artifact:
    """One artifact.

    Attributes:
        id: Its id.
        kind: Name of its type, as `Model`.
        path: Its folder.
        state: `live`; `deleted`, marked as removed; `other`, which is left alone.
        numbers: Its whole-number custom properties.
        texts: Its text custom properties.
    """

    id: int
    kind: str
    path: Path
    state: State = "live"
    numbers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Execution:
    """One execution of a step.

    Attributes:
        id: Its id.
        step: Name of the step.
        run: Id of its run.
        ended_well: Whether it is complete or cached.
        inputs: Ids of the artifacts of each input.
        outputs: Ids of the artifacts of each output; of a resolver, what it resolved.
        parameters: Its fingerprint of the code, and the digest of the files that it read.
    """

    id: int
    step: str
    run: str
    ended_well: bool
    inputs: Mapping[str, Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def artifacts(self) -> set[int]:
        """What it was made from, and what it made."""
        return {id_ for side in (self.inputs, self.outputs) for ids in side.values() for id_ in ids}


@dataclasses.dataclass(frozen=True)
class PastRun:
    """One run.

    Attributes:
        id: Its id, the name of its record.
        started: When [seconds since 1970].
    """

    id: str
    started: float


@dataclasses.dataclass(frozen=True)
class Known:
    """The records of one pipeline.

    Attributes:
        runs: Its runs, the oldest first.
        executions: Its executions, the oldest first.
        artifacts: Its artifacts by id.
    """

    runs: Sequence[PastRun]
    executions: Sequence[Execution]
    artifacts: Mapping[int, Artifact]

    def of_kind(self, kind: str) -> list[Artifact]:
        """Returns the live artifacts of a kind, the oldest first."""
        live = [artifact for artifact in self.artifacts.values() if artifact.state == "live" and artifact.kind == kind]
        return sorted(live, key=lambda artifact: artifact.id)

    def maker(self, artifact: int) -> Execution | None:
        """Returns the execution that made an artifact: the first that put it out."""
        makers = (
            execution for execution in self.executions if any(artifact in ids for ids in execution.outputs.values())
        )
        return next(makers, None)


@dataclasses.dataclass(frozen=True)
class Version:
    """A served version, or one that was rolled back and can be brought back.

    Attributes:
        number: Its number.
        path: Its folder while it is in service, as a push names it.
        is_served: Whether it is in service; rolled back otherwise.
    """

    number: int
    path: Path
    is_served: bool
