"""Resolvers: the nodes that look up in ML Metadata what earlier runs made.

TFX's own strategies take the latest artifact of all. On a rerun with nothing changed that
is what the step itself made, so the step would run again, for ever. Here a rerun is given
what the first run was given, and is cached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Event, Execution
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Artifact, BaseChannel, Channel
from tfx.types.standard_artifacts import ExampleStatistics, Model, ModelBlessing, PushedModel

from components.artifacts import CURRENT_MODEL, Verdict, statistics_property
from components.pusher import DESTINATION
from recsys.bundles.versions import VersionRegistry

_OUTPUTS, _INPUTS = (Event.OUTPUT, Event.DECLARED_OUTPUT), (Event.INPUT, Event.DECLARED_INPUT)
_PREVIOUS, _BASE = "previous", "base"
_MODELS = ("model", "blessing", "pushed")

_Artifacts = dict[str, list[Artifact]]
"""Artifacts by the key of a resolver's input or output."""


# --- the vocabularies that a step goes on from


class PreviousStrategy(ResolverStrategy):
    """Takes the newest artifact; if equal inputs made it, what it was made from instead.

    Args:
        parameters: The step's parameters, which count as inputs.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns `previous`, an empty list where there is none, and the inputs as they are."""
        by_id = {artifact.id: artifact for artifact in input_dict[_PREVIOUS]}
        inputs = _without(input_dict, (_PREVIOUS,))
        newest = sorted(by_id)[-1:]
        taken = _taken_before(store, newest, inputs, self._parameters, _PREVIOUS, by_id)
        # Where what it was made from is deleted, it goes on from itself.
        chosen = newest if taken is None else taken[:1]
        return {_PREVIOUS: [by_id[id_] for id_ in chosen], **inputs}


def Previous(
    name: str, kind: type[Artifact], parameters: dict[str, str], **inputs: BaseChannel
) -> Resolver:
    """Returns the node whose output `previous` is what an earlier run of a step made.

    Args:
        name: Name of the node.
        kind: Type of what the step makes.
        parameters: The step's parameters.
        **inputs: The step's other inputs, by their keys.
    """
    return Resolver(
        strategy_class=PreviousStrategy,
        config={"parameters": parameters},
        **{_PREVIOUS: Channel(type=kind)},
        **inputs,
    ).with_id(name)


# --- the model that a training goes on from


class WarmBaseStrategy(ResolverStrategy):
    """Takes the newest good model; if equal inputs made a model before, its base instead.

    A run after a model that was not blessed starts from the last blessed one again.

    Args:
        parameters: The training's parameters, which count as inputs.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns `model`, an empty list where there is none, and the inputs as they are."""
        models = {model.id: model for model in input_dict["model"]}
        there = {id_ for id_, model in models.items() if _has_files(model)}
        inputs = _without(input_dict, _MODELS)
        # A base that is deleted can't be read again: the last good model takes its place.
        # Where the model that it became has its files, nobody reads the base's.
        reruns = [id_ for id_ in _made_with(store, models, inputs) if id_ in there]
        chosen = _taken_before(store, reruns, inputs, self._parameters, _BASE, models)
        if chosen is None:
            chosen = sorted(there & good_models(input_dict["blessing"], input_dict["pushed"]))
        newest = [models[id_] for id_ in chosen[-1:]]
        return {"model": newest, "blessing": [], "pushed": [], **inputs}


def WarmBase(parameters: dict[str, str], **inputs: BaseChannel) -> Resolver:
    """Returns the node whose output `model` is the one that a training goes on from.

    Args:
        parameters: The training's parameters.
        **inputs: The training's other inputs, by their keys.
    """
    return Resolver(
        strategy_class=WarmBaseStrategy,
        config={"parameters": parameters},
        **_model_channels(),
        **inputs,
    ).with_id("WarmBase")


# --- the model that a new one must be better than


class LatestBlessedStrategy(ResolverStrategy):
    """Takes the newest blessed model; the current one and those rolled back left out."""

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns the model and the current one; no model where none was blessed."""
        del store
        inputs = _without(input_dict, _MODELS)
        good = good_models(input_dict["blessing"], input_dict["pushed"])
        good -= {model.id for model in inputs["current"]}
        models = {model.id: model for model in input_dict["model"]}
        return {"model": _newest(models, good), "blessing": [], "pushed": [], **inputs}


def LatestBlessed(current: BaseChannel) -> Resolver:
    """Returns the node whose output `model` is the last blessed model but `current`."""
    return Resolver(
        strategy_class=LatestBlessedStrategy, **_model_channels(), current=current
    ).with_id("LatestBlessed")


# --- the statistics that today's are compared with


class EarlierStatisticsStrategy(ResolverStrategy):
    """Takes the statistics of the last accepted data, and of the last blessed model.

    The first are for drift, the second for skew. Data that the gate refused is no measure:
    else a fault would pass the gate on the second night. Both are older than today's and so
    depend on today's alone.

    Args:
        what: `interactions`, `items` or `users`.
    """

    def __init__(self, what: str) -> None:
        self._property = statistics_property(what)

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns `accepted` and `trained`, each of one or no statistics."""
        (current,) = input_dict["current"]
        # A folder that somebody removed can't be read again.
        older = {
            statistics.id: statistics
            for statistics in input_dict["accepted"]
            if statistics.id < current.id and Path(statistics.uri).is_dir()
        }
        statistics_of = {
            verdict.id: verdict.get_int_custom_property(self._property)
            for verdict in input_dict["verdict"]
        }
        models = sorted(_blessed_models(input_dict["blessing"]), reverse=True)
        trained = (statistics_of.get(_verdict_behind(store, model)) for model in models)
        return {
            **{key: [] for key in input_dict},
            "current": [current],
            "accepted": _newest(older, statistics_of.values()),
            "trained": [older[id_] for id_ in trained if id_ in older][:1],
        }


def EarlierStatistics(what: str, current: BaseChannel) -> Resolver:
    """Returns the node whose outputs `accepted` and `trained` are older than `current`.

    Args:
        what: `interactions`, `items` or `users`.
        current: Today's statistics.
    """
    return Resolver(
        strategy_class=EarlierStatisticsStrategy,
        config={"what": what},
        accepted=Channel(type=ExampleStatistics),
        trained=Channel(type=ExampleStatistics),
        verdict=Channel(type=Verdict),
        blessing=Channel(type=ModelBlessing),
        current=current,
    ).with_id(f"EarlierStatistics.{what.capitalize()}")


# --- models that are good enough


def good_models(blessings: Iterable[Artifact], pushed: Iterable[Artifact]) -> set[int]:
    """Returns the ids of the models that were blessed, without those rolled back.

    Args:
        blessings: The evaluations' verdicts.
        pushed: What was pushed by them.
    """
    return _blessed_models(blessings) - _rolled_back(pushed)


def _blessed_models(blessings: Iterable[Artifact]) -> set[int]:
    return {
        blessing.get_int_custom_property(CURRENT_MODEL)
        for blessing in blessings
        if blessing.get_int_custom_property("blessed") == 1
    }


def _rolled_back(pushed: Iterable[Artifact]) -> set[int]:
    """Returns the ids of the models whose version was taken out of service."""
    registries: dict[Path, VersionRegistry] = {}
    models = set()
    for push in pushed:
        destination = Path(push.get_string_custom_property(DESTINATION))
        root = destination.parent
        if not destination.name.isdecimal() or not root.is_dir():
            continue  # Nothing was pushed, or what was served is gone.
        if root not in registries:
            registries[root] = VersionRegistry.open(root)
        if int(destination.name) in registries[root].withdrawn:
            models.add(push.get_int_custom_property(CURRENT_MODEL))
    return models


def _has_files(model: Artifact) -> bool:
    return (Path(model.uri) / "model.json").exists()


def _model_channels() -> dict[str, Channel]:
    kinds = (Model, ModelBlessing, PushedModel)
    return {key: Channel(type=kind) for key, kind in zip(_MODELS, kinds, strict=True)}


# --- what an execution took


def _without(artifacts: _Artifacts, keys: Collection[str]) -> _Artifacts:
    return {key: list(values) for key, values in artifacts.items() if key not in keys}


def _newest(by_id: dict[int, Artifact], ids: Iterable[int]) -> list[Artifact]:
    return [by_id[id_] for id_ in sorted(by_id.keys() & set(ids))[-1:]]


def _taken_before(
    store: mlmd.MetadataStore,
    made: Iterable[int],
    inputs: _Artifacts,
    parameters: dict[str, str],
    key: str,
    known: Collection[int],
) -> list[int] | None:
    """Returns what an earlier run with equal inputs took; None if there is no such run.

    Args:
        store: The metadata store.
        made: Ids of artifacts that such a run may have made, in the order of trial.
        inputs: The inputs of the step now, but for the one asked for.
        parameters: The step's parameters now.
        key: The input that is asked for.
        known: Ids that still exist; a run that took others doesn't count.
    """
    now = {name: [artifact.id for artifact in some] for name, some in inputs.items() if some}
    for id_ in made:
        execution = _maker(store, id_)
        if execution is None:
            continue
        taken = _inputs(store, execution.id)
        before = {name: ids for name, ids in taken.items() if name in inputs}
        if now == before and parameters == _parameters(execution, parameters):
            ids = taken.get(key, [])
            if set(ids) <= set(known):
                return ids
    return None


def _made_with(store: mlmd.MetadataStore, models: Collection[int], inputs: _Artifacts) -> list[int]:
    """Returns the models that were made with one of `inputs`, the newest first.

    Of a year of nights these are few, and only they are looked at one by one.
    """
    taken = [artifact.id for artifacts in inputs.values() for artifact in artifacts]
    executions = {event.execution_id for event in store.get_events_by_artifact_ids(taken)}
    events = store.get_events_by_artifact_ids(list(models)) if models else []
    return sorted({e.artifact_id for e in events if e.execution_id in executions}, reverse=True)


def _verdict_behind(store: mlmd.MetadataStore, model: int) -> int:
    """Returns the id of the verdict that the training of `model` started from; 0 for none."""
    execution = _maker(store, model)
    verdicts = [] if execution is None else _inputs(store, execution.id).get("verdict", [])
    return verdicts[0] if verdicts else 0


def _maker(store: mlmd.MetadataStore, artifact: int) -> Execution | None:
    """Returns the execution that made an artifact; later ones took it from the cache."""
    events = store.get_events_by_artifact_ids([artifact])
    ids = [event.execution_id for event in events if event.type in _OUTPUTS]
    return store.get_executions_by_id([min(ids)])[0] if ids else None


def _inputs(store: mlmd.MetadataStore, execution: int) -> dict[str, list[int]]:
    """Returns the ids of the artifacts that an execution took, by the key of the input."""
    ids: dict[str, list[int]] = {}
    for event in store.get_events_by_execution_ids([execution]):
        if event.type in _INPUTS:
            ids.setdefault(event.path.steps[0].key, []).append(event.artifact_id)
    return ids


def _parameters(execution: Execution, names: Iterable[str]) -> dict[str, Any]:
    values = {**execution.properties, **execution.custom_properties}
    return {name: values[name].string_value for name in names if name in values}
