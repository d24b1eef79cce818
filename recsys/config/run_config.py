"""The complete config: the parts that the stages need, and those of a run's operation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from recsys.config.data import DataConfig
from recsys.config.evaluation import EvaluateStage
from recsys.config.stage import Stage
from recsys.config.training import TrainStage, parse_mesh
from recsys.distributed.launchers import Launcher, LocalLauncher
from recsys.registry import Choice, plugins_of
from recsys.strict import Name, Share, Strict
from recsys.system.files import local_folder


class IndexConfig(Strict):
    """How `recsys serve` searches for the best items of a query."""

    kind: Literal["auto", "exact", "ann"] = "auto"
    """`exact`: scores every item; `ann`: approximate nearest neighbours, which scores the items of
    the nearest lists; `auto`: exact up to `exact_up_to` items."""
    exact_up_to: PositiveInt = 200_000
    """Highest number of items for which `auto` is exact; above it, an exact search takes more than
    5 ms."""
    min_recall: Share = 0.95
    """Lowest share of the exact top `export.k` that the index must find; otherwise the export
    fails [0..1]."""
    lists: PositiveInt | None = None
    """Number of lists of the index; `null`: four times the square root of the number of items."""


class ExportConfig(Strict):
    """The serving bundle."""

    k: PositiveInt = 100
    """Highest number of candidates that `recommend` can return."""
    item_embeddings: Literal["float32", "float16", "int8"] = "float32"
    """Dtype of the item embeddings in the SavedModel: `float16` halves their size, `int8` quarters
    it."""
    min_parity: Share = 0.99
    """Lowest share of the exact float32 top k that item embeddings of lower precision must find
    [0..1]."""
    latency_ms: PositiveFloat | None = None
    """Highest 99th percentile of the latency of single requests; a slower bundle is rejected;
    `null`: not measured [ms]."""
    index: IndexConfig = IndexConfig()
    """How `recsys serve` searches for the best items."""
    vectors: Literal["bundle", "apart"] = "bundle"
    """Location of the item vectors. `bundle`: in the SavedModel, which ranks; `apart`: only in
    `item_embeddings.npy`, for a vector database besides TensorFlow Serving."""


class ExportStage(Stage):
    """The parts of a config that the export needs."""

    name: Name
    """Name of the pipeline and of the served model."""
    export: ExportConfig = ExportConfig()
    """The serving bundle."""


Port = Annotated[int, Field(ge=1, le=65535)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Text = Annotated[str, Field(min_length=1)]
Outcome = Literal["blessed", "refused", "failed", "interrupted"]


class BeamConfig(Strict):
    """Apache Beam."""

    args: tuple[str, ...] = ("--runner=DirectRunner",)
    """Pipeline arguments for Beam. `DirectRunner`, and no runner at all, mean Beam's FnApiRunner on
    this machine."""
    tfx_args: tuple[str, ...] | None = None
    """Pipeline arguments of the TFX steps StatisticsGen and Transform, for a runner that does not
    support them; `null`: same as `args`."""


class MysqlSslConfig(Strict):
    """TLS to the MySQL server."""

    ca: str
    """CA certificates that verify the server's certificate (PEM file)."""
    cert: str | None = None
    """Client certificate, if the server requires one (PEM file)."""
    key: str | None = None
    """Private key of the client certificate (PEM file)."""
    verify_server: bool = True
    """Whether the name in the server's certificate must equal `host`."""

    @model_validator(mode="after")
    def _key_and_certificate_belong_together(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key must be given together, or neither of them")
        return self


class MysqlConfig(Strict):
    """An existing database on a MySQL or MariaDB server."""

    host: Text
    """Host name or address of the server."""
    port: Port = 3306
    """Port of the server."""
    database: Text
    """Name of the database. It must exist; the first run creates its tables."""
    user: Text
    """Database user."""
    password_env: VariableName = "RECSYS_METADATA_PASSWORD"  # noqa: S105 - a variable's name
    """Environment variable that holds the password. It is the only place where the password is
    read."""
    ssl: MysqlSslConfig | None = None
    """TLS to the server; `null`: none."""


class MetadataConfig(Strict):
    """The store of ML Metadata."""

    mysql: MysqlConfig | None = None
    """MySQL server; `null`: SQLite, in `metadata.sqlite` under `root`."""


class PushConfig(Strict):
    """The serving folder."""

    keep: PositiveInt = 5
    """Number of newest versions to keep in the serving folder."""


class KeepConfig(Strict):
    """Retention of earlier runs; `null` removes nothing.

    Artifacts that the next run or the served model needs are always kept.
    """

    runs: PositiveInt | None = None
    """Number of newest runs whose artifacts are kept, besides those that later runs and served
    versions need; `null`: no limit on the number."""
    days: PositiveInt | None = None
    """Days for which the artifacts of a run are kept. If `runs` is set too, a run is kept if
    either rule keeps it. `null`: no limit on the age."""
    checkpoints: PositiveInt | None = None
    """Number of newest trainings whose checkpoints are kept; a killed run resumes from the
    newest."""
    records: PositiveInt | None = None
    """Number of newest runs whose record, report, log and TensorBoard events are kept."""

    @property
    def is_set(self) -> bool:
        """Whether any limit is set."""
        return self != KeepConfig()


class NotifyConfig(Strict):
    """A webhook that is called at the end of each run."""

    webhook_env: VariableName | None = None
    """Environment variable that holds the URL of the webhook, which is a secret and so does not
    belong in the config; `null`: no webhook."""
    on: tuple[Outcome, ...] = ("blessed", "refused", "failed", "interrupted")
    """Outcomes for which the webhook is called; `interrupted` runs were stopped or killed."""
    timeout_s: Annotated[PositiveFloat, Field(le=120.0)] = 10.0
    """Timeout of one attempt [s]."""
    attempts: Annotated[int, Field(ge=1, le=10)] = 4
    """Highest number of attempts."""
    total_s: Annotated[PositiveFloat, Field(le=600.0)] = 60.0
    """Timeout of all attempts together, including the waits between them [s]."""


StageT = TypeVar("StageT", "TrainStage", "EvaluateStage", "ExportStage")


class Config(TrainStage, EvaluateStage, ExportStage):
    """The complete config of a run."""

    root: str
    """Folder of all outputs of a run."""
    data: DataConfig
    """The data, from raw files to the interaction store."""
    push: PushConfig = PushConfig()
    """The serving folder."""
    beam: BeamConfig = BeamConfig()
    """Apache Beam."""
    launcher: Annotated[Launcher, Choice("launcher", "local", key="kind")] = LocalLauncher()
    """Where `recsys run` trains: `local`, on this machine, or `command`, on several hosts. It does
    not affect the model, so a change does not retrain."""
    metadata: MetadataConfig = MetadataConfig()
    """The store of ML Metadata."""
    keep: KeepConfig = KeepConfig()
    """Retention of earlier runs."""
    notify: NotifyConfig = NotifyConfig()
    """A webhook that is called at the end of each run."""

    @property
    def root_folder(self) -> Path:
        """`root` as a folder of this machine; a UsageError if it is a URL (R112)."""
        return local_folder(self.root)

    @model_validator(mode="after")
    def _parts_fit_the_data(self) -> Self:
        split, order = self.data.split, self.data.interactions.ordered_by
        is_unordered = split == "random" or (split == "given" and order == "none")
        sides = self.data.sides.values()
        features = [feature.name for side in sides for feature in side.features]
        unknown = [name for name in self.evaluate.slices if name not in features]
        if self.warm_start is not None and split != "time":
            raise ValueError(
                f"warm_start needs data.split: time; with {split} an earlier model may have been"
                " trained on positives that are held out now: remove warm_start"
            )
        if self.evaluate.query == "each_moment" and is_unordered:
            raise ValueError(
                "evaluate.query: each_moment needs held-out events that are later than the"
                f" training events; data.split: {split} does not ensure it: remove it, or set"
                " at_cut"
            )
        if self.model.history_of == "past" and order == "none":
            raise ValueError(
                "model.history_of: past needs an order of the events, and data.interactions has"
                " none: remove it, or set others"
            )
        if unknown:
            raise ValueError(
                "evaluate.slices must be features of items or users"
                f" ({', '.join(features) or 'there are none'}); received {unknown[:1]}"
            )
        return self


def stage_of(config: Config | EvaluateStage, kind: type[StageT]) -> StageT:
    """Returns the parts of `config` that the stage `kind` needs, with the plugins they name."""
    parts = {name: getattr(config, name) for name in kind.model_fields}
    return kind(**{**parts, "plugins": plugins_of(config.plugins, *parts.values())})


def with_mesh(config: Config, mesh: str | None) -> Config:
    """Returns the config with the mesh that a command-line option describes, if there is one."""
    return config if mesh is None else config.model_copy(update={"mesh": parse_mesh(mesh)})
