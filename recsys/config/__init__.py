"""The config of a run: typed, strict, complete.

`Config` joins the configs of the rooms with that of a run's operation; a function takes only the
part that it needs. `recsys.config.load` reads configs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from recsys.bundles.config import ExportConfig as ExportConfig
from recsys.bundles.config import ExportStage as ExportStage
from recsys.data.beam_config import BeamConfig as BeamConfig
from recsys.data.config import RESERVED_FEATURE_NAMES as RESERVED_FEATURE_NAMES
from recsys.data.config import CsvFormat as CsvFormat
from recsys.data.config import DataConfig as DataConfig
from recsys.data.config import ElementFields as ElementFields
from recsys.data.config import GateConfig as GateConfig
from recsys.data.config import InteractionColumns as InteractionColumns
from recsys.data.config import InteractionsConfig as InteractionsConfig
from recsys.data.config import ItemColumns as ItemColumns
from recsys.data.config import ItemsConfig as ItemsConfig
from recsys.data.config import ListOfEvents as ListOfEvents
from recsys.data.config import Order as Order
from recsys.data.config import SourceConfig as SourceConfig
from recsys.data.config import UserColumns as UserColumns
from recsys.data.config import UsersConfig as UsersConfig
from recsys.data.config import ValidationConfig as ValidationConfig
from recsys.data.config import VocabulariesConfig as VocabulariesConfig
from recsys.data.config import VocabularyConfig as VocabularyConfig
from recsys.data.config import read_feature as read_feature
from recsys.data.config import write_feature as write_feature
from recsys.data.label_config import LabelConfig as LabelConfig
from recsys.data.label_config import SampledConfig as SampledConfig
from recsys.distributed.config import MeshConfig as MeshConfig
from recsys.distributed.config import parse_mesh as parse_mesh
from recsys.distributed.launchers import Launcher, LocalLauncher
from recsys.evaluation.config import BlessConfig as BlessConfig
from recsys.evaluation.config import BlessRule as BlessRule
from recsys.evaluation.config import EvaluateConfig as EvaluateConfig
from recsys.evaluation.config import EvaluateStage as EvaluateStage
from recsys.models.config import ModelConfig as ModelConfig
from recsys.models.config import RetrievalConfig as RetrievalConfig
from recsys.models.config import TermConfig as TermConfig
from recsys.models.config import TwoTowerConfig as TwoTowerConfig
from recsys.models.ranking_config import RankingConfig as RankingConfig
from recsys.pair.config import PairStage as PairStage
from recsys.pair.config import RankerConfig as RankerConfig
from recsys.registry import Choice
from recsys.registry.choice import stage_of as stage_of
from recsys.storage.working_folder import local_folder
from recsys.strict import Repeats as Repeats
from recsys.strict import Share as Share
from recsys.strict import Strict as Strict
from recsys.strict import canonical_json as canonical_json
from recsys.tasks.config import TrainConfig as TrainConfig
from recsys.tasks.config import TrainStage as TrainStage

Port = Annotated[int, Field(ge=1, le=65535)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Text = Annotated[str, Field(min_length=1)]
Outcome = Literal["blessed", "refused", "failed", "interrupted"]


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


class ServedLogConfig(Strict):
    """The log of what a ranking model served, in `served/NAME` under `root`."""

    days: PositiveInt = 30
    """Days for which files are kept."""
    mib: PositiveInt = 1024
    """Highest size of all files together; the oldest are removed first [MiB]."""


class ServingConfig(Strict):
    """`recsys serve`."""

    log: ServedLogConfig | None = None
    """Log of what was served, if the server has a config; `null`: none."""


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


class Config(TrainStage, EvaluateStage, ExportStage):
    """The complete config of a run."""

    root: str
    """Folder of all outputs of a run; also `s3://`, `gs://` and `az://`: docs/object_stores.md."""
    data: DataConfig
    """The data, from raw files to the interaction store."""
    ranker: RankerConfig | None = None
    """Second stage: a ranker that orders the candidates of the model, which is a retriever; `null`:
    none. docs/pair.md describes pairs."""
    push: PushConfig = PushConfig()
    """The serving folder."""
    serving: ServingConfig = ServingConfig()
    """`recsys serve`."""
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
        """`root` as a folder of this machine: the working folder, if it is a URL."""
        return local_folder(self.root)

    @model_validator(mode="after")
    def _parts_fit_the_data(self) -> Self:
        split, order = self.data.split, self.data.interactions.ordered_by
        is_unordered = split == "random" or (split == "given" and order == "none")
        sides = self.data.sides.values()
        features = [f.name for side in sides for f in side.features if not f.floats]
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
        self.model.check_order(order)
        self.model.learned(self.data.interactions.labels)
        if self.ranker is not None:
            self._check_ranker(self.ranker)
        judged = self.of_task(self.model.task)
        self.__dict__.update(evaluate=judged.evaluate, bless=judged.bless)  # It is frozen.
        if unknown:
            raise ValueError(
                "evaluate.slices must be features of items or users that have tokens"
                f" ({', '.join(features) or 'there are none'}); received {unknown[:1]}"
            )
        return self

    def _check_ranker(self, ranker: RankerConfig) -> None:
        """Checks the second stage against the data and the first, and sets what decides."""
        if not isinstance(self.model, RetrievalConfig):
            raise ValueError(
                "ranker orders the candidates of a retriever: remove task and model, or ranker;"
                f" received a model of the task {self.model.task}"
            )
        ranker.model.check_order(self.data.interactions.ordered_by)
        labels = self.data.interactions.labels
        if labels and (unknown := [name for name in ranker.labels if name not in labels]):
            raise ValueError(
                f"ranker.labels must name labels of the data ({', '.join(labels)}); received"
                f" {unknown[0]!r}"
            )
        ranker.learner.learned(labels)
        if ranker.share_tables and self.data.split != "time":
            raise ValueError(
                "ranker.share_tables needs data.split: time, since the final retriever continues"
                f" an earlier one; received {self.data.split}"
            )
        items = self.data.items
        tokens = [f.name for f in items.features if not f.floats] if items else []
        for name in (*ranker.max_per_value, *ranker.only):
            if name not in tokens:
                raise ValueError(
                    "ranker.max_per_value and ranker.only must name features of items that have"
                    f" tokens ({', '.join(tokens) or 'there are none'}); received {name!r}"
                )
        if "metric" not in self.bless.model_fields_set:
            bless = self.bless.model_copy(update={"metric": "ndcg@10"})
            self.__dict__["bless"] = bless  # It is frozen.


def with_mesh(config: Config, mesh: str | None) -> Config:
    """Returns the config with the mesh that a command-line option describes, if there is one."""
    return config if mesh is None else config.model_copy(update={"mesh": parse_mesh(mesh)})
