"""Config of Apache Beam: the engine of ingestion."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recsys.strict import Strict

EngineName = Literal["local", "flink", "spark", "prism", "dask", "dataflow"]
Address = Annotated[str, Field(pattern=r"^([a-z]+://)?[^\s/]+:\d+$|^$")]


class BeamConfig(Strict):
    """Apache Beam."""

    runner: EngineName = "local"
    """Engine of the steps that read and transform data; `local`: threads of one process for our
    steps, and Beam's FnApiRunner for TFX's. docs/cluster.md describes the others."""
    master: Address = ""
    """Address of the engine, `HOST:PORT`: Beam's job server for `flink`, `spark` and `prism`,
    `tcp://HOST:PORT` of the scheduler for `dask`."""
    workers: Address = ""
    """`HOST:PORT` of the Python worker pool, as a worker of the engine sees it; empty: the process
    of the step does the work, which needs an engine on this machine."""
    cluster: Address = ""
    """`HOST:PORT` of Flink's REST interface, by which its version is checked; empty: no check."""
    shared_root: bool = False
    """Whether all machines of the engine mount `root` and the data at the paths of this one."""
    args: tuple[str, ...] = ()
    """Further pipeline options of Beam."""

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if (self.runner in ("local", "dataflow")) == bool(self.master):
            needs = "no beam.master" if self.master else "beam.master: HOST:PORT"
            raise ValueError(f"beam.runner: {self.runner} needs {needs}")
        if self.runner == "dataflow":
            missing = [
                name for name in ("--project", "--region", "--temp_location")
                if not any(arg.split("=")[0] == name for arg in self.args)
            ]  # fmt: skip
            if missing or not self.shared_root:
                raise ValueError(
                    "beam.runner: dataflow needs beam.shared_root: true, and --project, --region"
                    f" and --temp_location in beam.args; missing: {missing or 'beam.shared_root'}"
                )
        return self
