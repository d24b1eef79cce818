"""Registry of the classes that a config names: models, encoders, losses, metrics and others.

Each is a class that is registered under a name and has a typed config:

    @recsys.register_loss("my_loss")
    class MyLoss(recsys.Loss):          # a pydantic model: its fields are its config
        margin: float = 0.5

A config refers to it by `loss: my_loss` or `loss: {type: my_loss, margin: 0.2}`. Built-in
classes are registered in the same way. `BUILT_INS` says where they are, so that they are imported
only when a config names them, and a config is read without Keras.

Classes of plugins are found in the modules that `plugins` in the config names, or that an
installed package declares as an entry point of the group `recsys.plugins`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from recsys.errors import PLUGIN_PACKAGES, RecsysError, UsageError
from recsys.strict import parts_in

ENTRY_POINTS = "recsys.plugins"
BUILT_INS = {
    "model": {
        "auto": "recsys.models.auto:AutoModel AutoConfig",
        "two_tower": "recsys.models.two_tower:TwoTower TwoTowerConfig",
    },
    "encoder": {
        "mean": "recsys.models.encoders:PlaceWeights MeanConfig",
        "none": "recsys.models.encoders:NoHistory NoHistoryConfig",
        "attention": "recsys.models.encoders:AttentionPooling AttentionConfig",
        "sequence": "recsys.models.encoders:SequenceEncoder SequenceConfig",
        "fold_in": "recsys.models.fold_in:FoldIn FoldInConfig",
        "sasrec": "recsys.models.sequences:SasRec SasRecConfig",
        "ligr": "recsys.models.sequences:Ligr LigrConfig",
        "hstu": "recsys.models.sequences:Hstu HstuConfig",
    },
    "loss": {
        "bilateral_softmax": "recsys.losses.bilateral:BilateralSoftmax",
        "cosine_contrastive": "recsys.losses.contrastive:CosineContrastive",
        "bpr": "recsys.losses.pairwise:Bpr",
        "sampled_softmax": "recsys.losses.softmax:SampledSoftmax",
        "full_softmax": "recsys.losses.softmax:FullSoftmax",
        "least_squares": "recsys.losses.squares:LeastSquares",
    },
    "metric": {
        "recall": "recsys.metrics.accuracy:Recall",
        "precision": "recsys.metrics.accuracy:Precision",
        "hit_rate": "recsys.metrics.accuracy:HitRate",
        "ndcg": "recsys.metrics.accuracy:Ndcg",
        "map": "recsys.metrics.accuracy:MeanAveragePrecision",
        "mrr": "recsys.metrics.accuracy:ReciprocalRank",
        "auc": "recsys.metrics.accuracy:Auc",
        "coverage": "recsys.metrics.beyond_accuracy:Coverage",
        "gini": "recsys.metrics.beyond_accuracy:Gini",
        "novelty": "recsys.metrics.beyond_accuracy:Novelty",
        "popularity_lift": "recsys.metrics.beyond_accuracy:PopularityLift",
        "diversity": "recsys.metrics.beyond_accuracy:Diversity",
    },
    "baseline": {
        "ials": "recsys.tasks.retrieval.baselines.ials:Ials",
        "item_knn": "recsys.tasks.retrieval.baselines.item_knn:ItemKnn",
        "popularity": "recsys.tasks.retrieval.baselines.popularity:Popularity",
        "recent_popularity": "recsys.tasks.retrieval.baselines.popularity:RecentPopularity",
    },
    "feature": {
        "category": "recsys.data.features:CategoryFeature",
        "categories": "recsys.data.features:CategoriesFeature",
        "words": "recsys.data.features:WordsFeature",
        "number": "recsys.data.features:NumberFeature",
        "date": "recsys.data.features:DateFeature",
    },
    "source": {
        "csv": "recsys.data.sources.csv_source:CsvSource",
        "jsonl": "recsys.data.sources.jsonl_source:JsonLinesSource",
        "parquet": "recsys.data.sources.parquet_source:ParquetSource",
        "tfrecord": "recsys.data.sources.tfrecord_source:TFRecordSource",
    },
    "row_optimizer": {
        "sgd": "recsys.embedding.optimizers:SGD SgdConfig",
        "adagrad": "recsys.embedding.optimizers:Adagrad AdagradConfig",
        "row_wise_adagrad": "recsys.embedding.optimizers:RowWiseAdagrad RowWiseAdagradConfig",
        "lazy_adam": "recsys.embedding.optimizers:LazyAdam LazyAdamConfig",
        "ftrl": "recsys.embedding.optimizers:Ftrl FtrlConfig",
    },
    "launcher": {
        "local": "recsys.distributed.launchers:LocalLauncher",
        "command": "recsys.distributed.launchers:CommandLauncher",
        "ray": "recsys.distributed.ray_launcher:RayLauncher",
    },
}
"""Built-in classes by kind and name: `module:Class`, and the config of one that imports Keras."""
_CONFIGS = {
    "model": "recsys.config.architecture",
    "encoder": "recsys.config.architecture",
    "row_optimizer": "recsys.config.training",
}
_NEEDED = {"metric": ("title", "meaning")}
"""Class attributes without a default that a report needs."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
ClassT = TypeVar("ClassT", bound=type)


class _BuiltIn(NamedTuple):
    """Location of a built-in class, as `module:Class`, and of its config."""

    path: str
    config: str | None

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]


_registered: dict[tuple[str, str], type] = {}


def register(kind: str, name: str, config: str | None = None) -> Callable[[ClassT], ClassT]:
    """Returns a class decorator that registers a class under a name.

    Args:
        kind: Kind of the class, a key of `BUILT_INS`.
        name: Name in a config: lower-case letters, digits and `_`.
        config: `module:Class` of its config, if it must be available without importing the
            class; by default the class is its own config, or has one as `Config`.

    Returns:
        The decorator; it returns the class unchanged.

    Raises:
        UsageError: The kind is unknown, another class has the name, or a text for the report
            is missing (R109).
    """
    if kind not in BUILT_INS or not _NAME.fullmatch(name):
        raise UsageError(
            "R109",
            f"A class must be registered as one of {', '.join(BUILT_INS)}, with a lower-case name.",
            "Write, for example, @recsys.register_loss('my_loss').",
            (kind, name),
        )

    def decorate(cls: ClassT) -> ClassT:
        earlier = _registered.get((kind, name))
        built_in = _built_ins(kind).get(name)
        is_ours = built_in is not None and built_in.path == _path(cls)
        if (earlier and _path(earlier) != _path(cls)) or (built_in and not is_ours):
            raise UsageError(
                "R109",
                f"The name {name!r} must be registered by only one {kind}.",
                "Choose another name.",
                _path(cls),
            )
        missing = [name for name in _NEEDED.get(kind, ()) if not getattr(cls, name, "")]
        if missing:
            raise UsageError(
                "R109",
                f"A {kind} must have a {' and a '.join(missing)}, which the report shows.",
                f'Write, for example, {missing[0]}: ClassVar[str] = "…" in the class.',
                _path(cls),
            )
        of_config = built_in.config if built_in else config
        if of_config is not None:
            setattr(cls, "Config", _load(of_config))  # noqa: B010  mypy: any class may get one.
        _registered[kind, name] = cls
        if not is_ours:
            PLUGIN_PACKAGES.add(cls.__module__.partition(".")[0])
        return cls

    return decorate


def get(kind: str, name: str) -> type:
    """Returns the class that is registered under a name, and imports it if necessary.

    Raises:
        UsageError: No class has this name (R109).
    """
    if (kind, name) not in _registered and name in _built_ins(kind):
        importlib.import_module(_built_ins(kind)[name].module)
    if (kind, name) not in _registered:
        _load_entry_points()
    if (kind, name) not in _registered:
        raise UsageError(
            "R109",
            f"A {kind} must be one of {', '.join(names(kind))}.",
            "Correct it, or add the module that registers it to plugins in the config.",
            name,
        )
    return _registered[kind, name]


def names(kind: str) -> list[str]:
    """Returns the names that a config can use, built-in ones first."""
    own = sorted(name for k, name in _registered if k == kind)
    return list(dict.fromkeys([*_built_ins(kind), *own]))


def name_of(kind: str, thing: Any) -> str:
    """Returns the registered name of a class, of its config class, or of an instance.

    Raises:
        ValueError: It is not registered.
    """
    cls = thing if isinstance(thing, type) else type(thing)
    for (k, name), registered in _registered.items():
        if k == kind and cls in (registered, getattr(registered, "Config", None)):
            return name
    for name, built_in in _built_ins(kind).items():
        if built_in.config == _path(cls):
            return name
    raise ValueError(f"{_path(cls)} must be registered as a {kind}")


def class_of(kind: str, config: pydantic.BaseModel) -> Any:
    """Returns the registered class that a config is of, and imports it if necessary."""
    return get(kind, name_of(kind, config))


def config_type(kind: str, name: str) -> type[pydantic.BaseModel]:
    """Returns the config class of a registered class.

    Raises:
        UsageError: No class has this name, or it has no config class (R109).
    """
    built_in = _built_ins(kind).get(name)
    if built_in is not None and built_in.config is not None:
        config: type = _load(built_in.config)
        return config
    cls = get(kind, name)
    config = getattr(cls, "Config", cls)
    if not (inspect.isclass(config) and issubclass(config, pydantic.BaseModel)):
        raise UsageError(
            "R109",
            f"The {kind} {name!r} must have a typed config.",
            "Give its class a nested `class Config(recsys.Strict)`.",
            _path(cls),
        )
    return config


def load_plugins(modules: Iterable[str]) -> None:
    """Imports modules that register classes.

    Raises:
        UsageError: A module can't be imported (R108).
    """
    for module in modules:
        if not _MODULE.fullmatch(module):
            raise UsageError("R108", "A plugin must be a module name.", "Correct it.", module)
        try:
            importlib.import_module(module)
        except RecsysError:
            raise
        except Exception as error:
            raise UsageError(
                "R108",
                f"The plugin {module!r} must be importable; its import raised"
                f" {type(error).__name__}: {error}.",
                "Install its package into this environment, or name its folder in PYTHONPATH; or"
                " correct the name or the module.",
                module,
            ) from error


def _loaded(modules: tuple[str, ...]) -> tuple[str, ...]:
    load_plugins(modules)
    return modules


Plugins = Annotated[tuple[str, ...], pydantic.AfterValidator(_loaded)]
"""Names of modules that are imported during validation. It must be the first key, so that later
keys find the classes that the modules register."""


class Choice:
    """Marks a config field with the value `name` or `{type: name, option: value}`.

    `Annotated[Any, Choice("loss")]` validates to the config object of the class. It is
    serialized as the name only if the class has no options.

    Args:
        kind: Kind of the class, a key of `BUILT_INS`.
        default: Name that a map without `type` refers to; None: `type` is required.
        key: Key of the name in the map.
    """

    def __init__(self, kind: str, default: str | None = None, key: str = "type") -> None:
        self.kind, self.default, self.key = kind, default, key

    def __get_pydantic_core_schema__(
        self, source: Any, handler: pydantic.GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Returns the pydantic schema that validates and serializes the field."""
        return core_schema.with_info_plain_validator_function(
            lambda value, info: self.read(value, info.context),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda config, info: self.write(config, info.context), info_arg=True
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Returns the JSON schema: each built-in class, or any other by its `type`."""
        built_ins = list(_built_ins(self.kind))
        options = [self._options(name, handler) for name in built_ins]
        other = {
            "type": "object",
            "properties": {self.key: {"type": "string", "not": {"enum": built_ins}}},
            "required": [self.key],
        }
        by_name = {"type": "string", "examples": built_ins}
        return {"anyOf": [by_name, *(o for o in options if o), other]}

    def _options(self, name: str, handler: pydantic.GetJsonSchemaHandler) -> dict[str, Any]:
        core = config_type(self.kind, name).__pydantic_core_schema__
        schema = dict(handler.resolve_ref_schema(handler(core)))
        properties = {self.key: {"const": name}, **schema.get("properties", {})}
        required = [] if name == self.default else [self.key]
        schema.update(properties=properties, required=[*required, *schema.get("required", ())])
        return schema

    def read(self, value: Any, context: Any = None) -> Any:
        """Returns the config object that `value` describes.

        Args:
            value: A name, or a map with options.
            context: Context of the validation, for the options.

        Raises:
            ValueError: The name is not registered, or the options are invalid.
        """
        if isinstance(value, str):
            value = {self.key: value}
        if isinstance(value, pydantic.BaseModel):  # Passed by Python code.
            name_of(self.kind, value)
            return value
        if not isinstance(value, dict):
            known = ", ".join(names(self.kind))
            raise ValueError(
                f"must be one of {known}, or a map with {self.key} and options; received {value!r}"
            )
        name = value.get(self.key, self.default)
        options = {key: option for key, option in value.items() if key != self.key}
        if not isinstance(name, str):
            raise ValueError(f"must have a {self.key}: {', '.join(names(self.kind))}")
        try:
            config = config_type(self.kind, name)
        except UsageError as error:
            known = ", ".join(names(self.kind))
            raise ValueError(
                f"must be one of {known}, or be registered by a module in `plugins`; received"
                f" {name!r}"
            ) from error
        # JSON mode converts lists to tuples and nothing else.
        return config.model_validate_json(json.dumps(options), context=context)

    def write(self, config: pydantic.BaseModel, context: Any = None) -> Any:
        """Returns the JSON-serializable input of `read`."""
        name = name_of(self.kind, config)
        options = config.model_dump(mode="json", context=context)
        return {self.key: name, **options} if options else name

    def config_of(self, value: Any) -> type[pydantic.BaseModel] | None:
        """Returns the config class that a raw value selects, or None."""
        name = value.get(self.key, self.default) if isinstance(value, dict) else value
        if not isinstance(name, str) or name not in names(self.kind):
            return None
        return config_type(self.kind, name)


def modules_of(*parts: Any) -> list[str]:
    """Returns the modules of all classes that parts of a config select.

    For an open choice such as `auto`, the modules of every built-in class are included.

    Args:
        *parts: Config objects, which are searched recursively.
    """
    modules: set[str] = set()
    for part in parts_in(*parts):
        if isinstance(part, pydantic.BaseModel):
            for kind in BUILT_INS:
                with contextlib.suppress(ValueError):  # The part itself may be a choice.
                    modules.update(_chosen_modules(kind, name_of(kind, part)))
            for name, field in type(part).model_fields.items():
                choice = choice_of(field)
                if choice is not None:
                    value = getattr(part, name)
                    values = value if isinstance(value, tuple) else (value,)
                    modules.update(*(_chosen_modules(choice.kind, value) for value in values))
    return sorted(modules)


def plugins_of(plugins: tuple[str, ...], *parts: Any) -> tuple[str, ...]:
    """Returns the plugins whose classes are used in parts of a config, by top-level package.

    Returns all of them if a class belongs to none, since any may have imported its module.
    """
    ours = __name__.split(".")[0]
    packages = {module.split(".")[0] for module in modules_of(*parts)} - {ours}
    if not packages <= {plugin.split(".")[0] for plugin in plugins}:
        return plugins
    return tuple(plugin for plugin in plugins if plugin.split(".")[0] in packages)


def plugins_needed(plugins: tuple[str, ...], *parts: Any) -> tuple[str, ...]:
    """Returns `plugins` and the modules of other classes that are used in parts of a config.

    Classes that a program registers itself are in no config, so saved folders list their modules.
    """
    known = {__name__.split(".")[0], *(plugin.split(".")[0] for plugin in plugins)}
    return (*plugins, *(m for m in modules_of(*parts) if m.split(".")[0] not in known))


def registered_in(module: str) -> list[type]:
    """Returns the classes that a module registered."""
    return [cls for cls in _registered.values() if cls.__module__ == module]


def choice_of(field: FieldInfo) -> Choice | None:
    """Returns the `Choice` of a config field, or of the elements of a tuple field."""
    parts = getattr(field.annotation, "__args__", ())
    marks = [*field.metadata, *(m for part in parts for m in getattr(part, "__metadata__", ()))]
    return next((mark for mark in marks if isinstance(mark, Choice)), None)


def _chosen_modules(kind: str, chosen: Any) -> list[str]:
    built_ins = _built_ins(kind)
    name = chosen if isinstance(chosen, str) else name_of(kind, chosen)
    if name in built_ins:
        return [built_ins[name].module]
    if (kind, name) in _registered:
        return [_registered[kind, name].__module__]
    return [built_in.module for built_in in built_ins.values()]


@functools.cache
def _built_ins(kind: str) -> dict[str, _BuiltIn]:
    """Returns the built-in classes of a kind by name."""
    located = {name: text.split() for name, text in BUILT_INS[kind].items()}
    return {
        name: _BuiltIn(path, f"{_CONFIGS[kind]}:{config[0]}" if config else None)
        for name, (path, *config) in located.items()
    }


@functools.cache
def _load_entry_points() -> None:
    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        load_plugins([entry_point.value.partition(":")[0]])


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _of_kind(kind: str) -> Callable[..., Callable[[ClassT], ClassT]]:
    def register_kind(name: str, config: str | None = None) -> Callable[[ClassT], ClassT]:
        return register(kind, name, config)

    register_kind.__name__ = register_kind.__qualname__ = f"register_{kind}"
    register_kind.__doc__ = f"Returns a class decorator that registers a {kind}; see `register`."
    return register_kind


register_model = _of_kind("model")
register_encoder = _of_kind("encoder")
register_loss = _of_kind("loss")
register_metric = _of_kind("metric")
register_baseline = _of_kind("baseline")
register_feature = _of_kind("feature")
register_source = _of_kind("source")
register_row_optimizer = _of_kind("row_optimizer")
