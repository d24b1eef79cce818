"""Config fields that select a registered class, the plugins that a config needs, and `Stage`."""

from __future__ import annotations

import contextlib
import json
from typing import Any, TypeVar

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from recsys.errors import UsageError
from recsys.registry.built_ins import BUILT_INS, built_ins
from recsys.registry.registered import Plugins, config_type, module_of, name_of, names
from recsys.strict import Repeats, Strict, parts_in

_PACKAGE = "recsys"


class Choice:
    """Marks a config field with the value `name` or `{type: name, option: value}`.

    `Annotated[Any, Choice("loss")]` validates to the config object of the class. It is
    serialized as the name only if the class has no options.

    Args:
        kind: Kind of the class, a key of `BUILT_INS`.
        default: Name that a map without `type` refers to; None: `type` is required.
        key: Key of the name in the map.
        optional: Whether the field may be None.
    """

    def __init__(
        self, kind: str, default: str | None = None, key: str = "type", optional: bool = False
    ) -> None:
        self.kind, self.default, self.key, self.optional = kind, default, key, optional

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
        known = list(built_ins(self.kind))
        options = [self._options(name, handler) for name in known]
        other = {
            "type": "object",
            "properties": {self.key: {"type": "string", "not": {"enum": known}}},
            "required": [self.key],
        }
        by_name = {"type": "string", "examples": known}
        none = [{"type": "null"}] if self.optional else []
        return {"anyOf": [by_name, *(o for o in options if o), other, *none]}

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
        if value is None and self.optional:
            return None
        if isinstance(value, str):
            value = {self.key: value}
        if isinstance(value, pydantic.BaseModel):  # From Python code.
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
        # JSON mode converts lists to tuples, and no other types.
        return config.model_validate_json(json.dumps(options), context=context)

    def write(self, config: pydantic.BaseModel | None, context: Any = None) -> Any:
        """Returns the JSON-serializable input of `read`."""
        if config is None:
            return None
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
                    values = value if isinstance(value, tuple) else (value,) if value else ()
                    modules.update(*(_chosen_modules(choice.kind, value) for value in values))
    return sorted(modules)


def plugins_of(plugins: tuple[str, ...], *parts: Any) -> tuple[str, ...]:
    """Returns the plugins whose classes are used in parts of a config, by top-level package.

    Returns all of them if a class belongs to none, since any may have imported its module.
    """
    ours = _PACKAGE
    packages = {module.split(".")[0] for module in modules_of(*parts)} - {ours}
    if not packages <= {plugin.split(".")[0] for plugin in plugins}:
        return plugins
    return tuple(plugin for plugin in plugins if plugin.split(".")[0] in packages)


def plugins_needed(plugins: tuple[str, ...], *parts: Any) -> tuple[str, ...]:
    """Returns `plugins` and the modules of other classes that are used in parts of a config.

    Classes that a program registers itself are in no config, so saved folders list their modules.
    """
    known = {_PACKAGE, *(plugin.split(".")[0] for plugin in plugins)}
    return (*plugins, *(m for m in modules_of(*parts) if m.split(".")[0] not in known))


def choice_of(field: FieldInfo) -> Choice | None:
    """Returns the `Choice` of a config field, or of the elements of a tuple field."""
    parts = getattr(field.annotation, "__args__", ())
    marks = [*field.metadata, *(m for part in parts for m in getattr(part, "__metadata__", ()))]
    return next((mark for mark in marks if isinstance(mark, Choice)), None)


def _chosen_modules(kind: str, chosen: Any) -> list[str]:
    ours = built_ins(kind)
    name = chosen if isinstance(chosen, str) else name_of(kind, chosen)
    if name in ours:
        return [ours[name].module]
    module = module_of(kind, name)
    return [module] if module else [built_in.module for built_in in ours.values()]


# --- the keys that every stage has


class Stage(Strict):
    """Keys of every stage."""

    plugins: Plugins = ()
    """Modules that register models, losses, metrics and other classes, imported before the rest of
    the config is read."""
    repeats: Repeats = "exclude"
    """Whether lists may contain items that their user has already interacted with. `exclude`: no,
    and repeated events are not evaluated; `include`: yes, they are treated like other items.
    Applies to validation, evaluation and the defaults of serving."""


StageT = TypeVar("StageT", bound=Stage)


def stage_of(config: Stage, kind: type[StageT]) -> StageT:
    """Returns the parts of `config` that the stage `kind` needs, and the plugins for them."""
    parts = {name: getattr(config, name) for name in kind.model_fields}
    return kind(**{**parts, "plugins": plugins_of(config.plugins, *parts.values())})
