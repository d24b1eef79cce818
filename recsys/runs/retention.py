"""Retention: the artifacts that resolvers, rollbacks and reruns still need, with reasons.

The rules mirror the resolvers of `components`: a resolver sees live artifacts only, so
what it reasons with has to stay live with what it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from recsys.runs.retention_facts import Known, Version
from collections.abc import Sequence
from recsys.config.operation import KeepConfig
from recsys.runs.retention_facts import Known, PastRun

ALWAYS = ("ModelBlessing", "PushedModel")
"""Kinds that always stay: some bytes each, and every verdict and rollback rests on them."""

REPORT = "Report"
_MODEL_OF = "current_model_id"
_DESTINATION = "pushed_destination"
_STATISTICS = "_statistics_id"
_NEWEST_BLESSED = 2
"""The next run starts from the last one; a rerun of the last run from the one before it."""


def needed_artifacts(known: Known, kept_runs: Collection[str], versions: Sequence[Version]) -> dict[int, str]:
    """Returns the ids of the artifacts to keep, each with the reason, a phrase.

    Args:
        known: All that is known of the pipeline.
        kept_runs: Ids of the runs that stay whole: what they made, and what they were
            made from.
        versions: What is served, and what can be served again.
    """
    reasons: dict[int, str] = {}
    for id_, why in _roots(known, kept_runs, versions):
        reasons.setdefault(id_, why)
    _add_dependencies(known, reasons)
    return {id_: why for id_, why in reasons.items() if id_ in known.artifacts}


def _roots(
    known: Known, kept_runs: Collection[str], versions: Sequence[Version]
) -> Iterator[tuple[int, str]]:
    yield from _models(known, versions)
    yield from _newest_of_a_kind(known)
    for execution in known.executions:
        if execution.run in kept_runs:
            for id_ in sorted(execution.artifacts):
                yield id_, "a run that stays made it or took it"
    for kind in ALWAYS:
        for artifact in known.of_kind(kind):
            yield artifact.id, "verdicts and pushes stay: later runs rest on them"


def _models(known: Known, versions: Sequence[Version]) -> Iterator[tuple[int, str]]:
    """Yields the models of the versions, and the last blessed ones."""
    there = {str(version.path): version for version in versions}
    withdrawn = {version.number for version in versions if not version.is_served}
    rolled_back = set()
    for push in known.of_kind("PushedModel"):
        destination, model = push.texts.get(_DESTINATION, ""), push.numbers.get(_MODEL_OF, 0)
        version = there.get(destination)
        if version is not None:
            yield model, f"it is the model of version {version.number}"
        if version is not None and version.number in withdrawn:
            rolled_back.add(model)
    blessed = blessed_models(known)
    good = [model for model in blessed if model not in rolled_back]
    # Whether something was rolled back may be forgotten: then the newest of all count too.
    for model in [*good[-_NEWEST_BLESSED:], *blessed[-_NEWEST_BLESSED:]]:
        yield model, "it is one of the last blessed models"


def blessed_models(known: Known) -> list[int]:
    """Returns the ids of the live models that were blessed, the oldest first."""
    models = {artifact.id for artifact in known.of_kind("Model")}
    blessed = {
        artifact.numbers.get(_MODEL_OF, 0)
        for artifact in known.of_kind("ModelBlessing")
        if artifact.numbers.get("blessed") == 1
    }
    return sorted(models & blessed)


def _newest_of_a_kind(known: Known) -> Iterator[tuple[int, str]]:
    """Yields the vocabularies and the accepted data that the next run goes on from."""
    vocabularies = known.of_kind("Vocabularies")
    for vocabulary in vocabularies[-1:]:
        yield vocabulary.id, "it is the newest vocabulary"
        maker = known.maker(vocabulary.id)
        for id_ in maker.inputs.get("previous", ()) if maker else ():
            yield id_, "the newest vocabulary was made from it"
    # Drift is measured against the accepted data before today's.
    for verdict in known.of_kind("Verdict")[-2:]:
        yield verdict.id, "it is the data that was accepted last"


def _add_dependencies(known: Known, reasons: dict[int, str]) -> None:
    """Adds what the artifacts in `reasons` are looked up by, until nothing is missing."""
    links = _links(known)
    waiting = list(reasons)
    while waiting:
        for other, why in links.get(waiting.pop(), ()):
            if other not in reasons:
                reasons[other] = why
                waiting.append(other)


def _links(known: Known) -> dict[int, list[tuple[int, str]]]:
    """Returns what stays with each artifact, and why."""
    links: dict[int, list[tuple[int, str]]] = {}
    for execution in known.executions:
        for model in execution.outputs.get("model", ()):
            for verdict in execution.inputs.get("verdict", ()):
                links.setdefault(model, []).append((verdict, f"the model {model} rests on it"))
    for accepted in known.of_kind("Verdict"):
        for name, statistics in accepted.numbers.items():
            if name.endswith(_STATISTICS):
                measure = (statistics, "drift or skew is measured by it")
                links.setdefault(accepted.id, []).append(measure)
                accepts = (accepted.id, "it accepted statistics that stay")
                links.setdefault(statistics, []).append(accepts)
    return links



# --- runs that stay whole

_DAY_S = 86_400.0
_LAST_STEP = "Reporter"


def kept_runs(known: Known, keep: KeepConfig, now: float) -> set[str]:
    """Returns the ids of the runs that stay whole.

    Those that `keep` names, and the last one that came to its end: after a week of failed
    nights a rerun must still find it.

    Args:
        known: All that is known of the pipeline.
        keep: The limits.
        now: Seconds since 1970.
    """
    ids = [run.id for run in known.runs]
    if keep.runs is None and keep.days is None:
        return set(ids)
    kept = set(ids[-keep.runs :]) if keep.runs is not None else set()
    if keep.days is not None:
        kept |= {run.id for run in known.runs if run.started >= now - keep.days * _DAY_S}
    return kept | set(_last_finished(known))


def records_since(runs: Sequence[PastRun], keep: KeepConfig) -> float | None:
    """Returns when the oldest run started whose record stays; None where all of them do."""
    if keep.records is None or len(runs) <= keep.records:
        return None
    return runs[-keep.records].started


def _last_finished(known: Known) -> list[str]:
    finished = {execution.run for execution in known.executions if execution.step == _LAST_STEP and execution.ended_well}
    return [run.id for run in known.runs if run.id in finished][-1:]


