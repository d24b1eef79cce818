"""Resolvers: nodes that look up artifacts of earlier runs in ML Metadata.

TFX's own strategies return the latest artifact, in an unchanged rerun the step's own output, so the
step would run each time. Here a rerun gets the same artifact as the first run, and is cached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import ml_metadata as mlmd
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Artifact, BaseChannel, Channel
from tfx.types.standard_artifacts import ExampleStatistics, Model, ModelBlessing, PushedModel

from components.artifacts import Verdict, statistics_property
from components.metadata import (
    CURRENT_MODEL,
    INPUTS,
    artifact_ids,
    blessed_models,
    good_models,
    maker,
    parameters_of,
)

_MODELS = {"model": Model, "blessing": ModelBlessing, "pushed": PushedModel}

_Artifacts = dict[str, list[Artifact]]
"""Artifacts by the key of a resolver's input or output."""


class PreviousStrategy(ResolverStrategy):
    """Returns the newest artifact; if it was made from equal inputs, the artifact that it extends.

    Args:
        parameters: The step's parameters, which count as inputs.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns `previous`, possibly empty, and the unchanged inputs."""
        by_id = {artifact.id: artifact for artifact in input_dict["previous"]}
        inputs = _without(input_dict, ("previous",))
        newest = sorted(by_id)[-1:]
        taken = _taken_before(store, newest, inputs, self._parameters, "previous", by_id)
        # If that artifact is deleted, it extends itself.
        chosen = newest if taken is None else taken[:1]
        return {"previous": [by_id[id_] for id_ in chosen], **inputs}


def Previous(
    name: str, kind: type[Artifact], parameters: dict[str, str], **inputs: BaseChannel
) -> Resolver:
    """Returns the node whose output `previous` is an earlier output of a step.

    Args:
        name: Name of the node.
        kind: Artifact type of the step's output.
        parameters: The step's parameters.
        **inputs: The step's other inputs, by their keys.
    """
    return Resolver(
        strategy_class=PreviousStrategy,
        config={"parameters": parameters},
        previous=Channel(type=kind),
        **inputs,
    ).with_id(name)


class WarmBaseStrategy(ResolverStrategy):
    """Returns the newest good model; if equal inputs made a model before, the base of that model.

    After a refused model, the next run starts from the last blessed one again.

    Args:
        parameters: The training's parameters, which count as inputs.
    """

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns `model`, possibly empty, and the unchanged inputs."""
        models = {model.id: model for model in input_dict["model"]}
        there = {id_ for id_, model in models.items() if (Path(model.uri) / "model.json").exists()}
        inputs = _without(input_dict, _MODELS)
        # A deleted base is replaced by the last good model. If the model that it became has its
        # files, the base's are not read.
        reruns = [id_ for id_ in _made_with(store, models, inputs) if id_ in there]
        chosen = _taken_before(store, reruns, inputs, self._parameters, "base", models)
        if chosen is None:
            chosen = sorted(there & _good_models(input_dict))
        newest = [models[id_] for id_ in chosen[-1:]]
        return {"model": newest, "blessing": [], "pushed": [], **inputs}


def WarmBase(parameters: dict[str, str], **inputs: BaseChannel) -> Resolver:
    """Returns the node whose output `model` is the base of a warm start.

    Args:
        parameters: The training's parameters.
        **inputs: The training's other inputs, by their keys.
    """
    return Resolver(
        strategy_class=WarmBaseStrategy,
        config={"parameters": parameters},
        **{key: Channel(type=kind) for key, kind in _MODELS.items()},
        **inputs,
    ).with_id("WarmBase")


class LatestBlessedStrategy(ResolverStrategy):
    """Returns the newest blessed model, except the current one and rolled back ones."""

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns the model and its blessing, if one was blessed, and the current one."""
        del store
        good = _good_models(input_dict) - {model.id for model in input_dict["current"]}
        models = {model.id: model for model in input_dict["model"]}
        inputs, newest = _without(input_dict, _MODELS), _newest(models, good)
        ids = {model.id for model in newest}
        blessings = {
            blessing.id: blessing
            for blessing in input_dict["blessing"]
            if blessing.get_int_custom_property(CURRENT_MODEL) in ids
            and blessing.get_int_custom_property("blessed") == 1
        }
        return {"model": newest, "blessing": _newest(blessings, blessings), "pushed": [], **inputs}


def LatestBlessed(current: BaseChannel) -> Resolver:
    """Returns the node with the last blessed `model` other than `current`, and its `blessing`."""
    channels = {key: Channel(type=kind) for key, kind in _MODELS.items()}
    return Resolver(strategy_class=LatestBlessedStrategy, **channels, current=current).with_id(
        "LatestBlessed"
    )


class EarlierStatisticsStrategy(ResolverStrategy):
    """Returns the statistics of the last accepted data, and of the last blessed model.

    The former are for drift, the latter for skew. Refused data are never a reference, else a fault
    would pass the gate on the second day. Both are older than the current data, so they depend only
    on these.

    Args:
        what: `interactions`, `items` or `users`.
    """

    def __init__(self, what: str) -> None:
        self._property = statistics_property(what)

    def resolve_artifacts(self, store: mlmd.MetadataStore, input_dict: _Artifacts) -> _Artifacts:
        """Returns `accepted` and `trained`, each with at most one artifact."""
        (current,) = input_dict["current"]
        # The folder may have been removed.
        older = {
            statistics.id: statistics
            for statistics in input_dict["accepted"]
            if statistics.id < current.id and Path(statistics.uri).is_dir()
        }
        statistics_of = {
            verdict.id: verdict.get_int_custom_property(self._property)
            for verdict in input_dict["verdict"]
        }
        blessings = [blessing.mlmd_artifact for blessing in input_dict["blessing"]]
        models = sorted(blessed_models(blessings), reverse=True)
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
        current: Current statistics.
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


def _good_models(artifacts: _Artifacts) -> set[int]:
    sides = ([each.mlmd_artifact for each in artifacts[key]] for key in ("blessing", "pushed"))
    return good_models(*sides)


# --- inputs of executions


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
    """Returns the artifacts that an earlier run with equal inputs used; None without such a run.

    Args:
        store: The metadata store.
        made: Ids of possible outputs of such a run, in order of preference.
        inputs: The step's current inputs, except `key`.
        parameters: The step's current parameters.
        key: The input to look up.
        known: Existing ids; runs that used others are ignored.
    """
    now = {name: [artifact.id for artifact in some] for name, some in inputs.items() if some}
    for id_ in made:
        execution = maker(store, id_)
        if execution is None:
            continue
        taken = artifact_ids(store, execution.id, INPUTS)
        before = {name: ids for name, ids in taken.items() if name in inputs}
        if now == before and parameters.items() <= parameters_of(execution).items():
            ids = taken.get(key, [])
            if set(ids) <= set(known):
                return ids
    return None


def _made_with(store: mlmd.MetadataStore, models: Collection[int], inputs: _Artifacts) -> list[int]:
    """Returns the models made with one of `inputs`, newest first.

    They are few even after a year of daily runs.
    """
    taken = [artifact.id for artifacts in inputs.values() for artifact in artifacts]
    executions = {event.execution_id for event in store.get_events_by_artifact_ids(taken)}
    events = store.get_events_by_artifact_ids(list(models)) if models else []
    return sorted({e.artifact_id for e in events if e.execution_id in executions}, reverse=True)


def _verdict_behind(store: mlmd.MetadataStore, model: int) -> int:
    """Returns the id of the verdict that the training of `model` started from; 0 for none."""
    execution = maker(store, model)
    taken = {} if execution is None else artifact_ids(store, execution.id, INPUTS)
    return taken.get("verdict", [0])[0]
