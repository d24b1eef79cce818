"""EarlierStatistics: what today's statistics are compared with.

Two of them: those of the data that the gate accepted last, for drift, and those of the
data that the last blessed model was trained on, for skew. Refused data is no measure:
else a fault would pass the gate on the second night.

Both are older than today's. So they depend on today's alone, and a rerun with nothing
changed finds the same ones and stays cached.
"""

from __future__ import annotations

from pathlib import Path

import ml_metadata as mlmd
from ml_metadata.proto.metadata_store_pb2 import Event
from tfx.dsl.components.common.resolver import Resolver, ResolverStrategy
from tfx.types import Artifact, BaseChannel, Channel
from tfx.types.standard_artifacts import ExampleStatistics, ModelBlessing

from components.artifacts import CURRENT_MODEL, Verdict

_OUTPUT = (Event.OUTPUT, Event.DECLARED_OUTPUT)
_INPUT = (Event.INPUT, Event.DECLARED_INPUT)


def statistics_property(what: str) -> str:
    """Returns the custom property of a `Verdict` that has the id of its statistics."""
    return f"{what}_statistics_id"


class EarlierStatisticsStrategy(ResolverStrategy):
    """Takes the statistics of the last accepted data and of the last blessed model.

    Args:
        what: `interactions`, `items` or `users`.
    """

    def __init__(self, what: str) -> None:
        self._property = statistics_property(what)

    def resolve_artifacts(
        self, store: mlmd.MetadataStore, input_dict: dict[str, list[Artifact]]
    ) -> dict[str, list[Artifact]]:
        """Returns `accepted` and `trained`, each of one or no statistics."""
        (current,) = input_dict["current"]
        # A folder that somebody removed can't be read again.
        older = {
            one.id: one
            for one in input_dict["accepted"]
            if one.id < current.id and Path(one.uri).is_dir()
        }
        verdicts = {verdict.id: verdict for verdict in input_dict["verdict"]}
        accepted = {one.get_int_custom_property(self._property) for one in verdicts.values()}
        trained = self._trained_on(store, input_dict["blessing"], verdicts)
        return {
            **{key: [] for key in input_dict},
            "current": [current],
            "accepted": _newest(older, accepted),
            "trained": _newest_first(older, trained),
        }

    def _trained_on(
        self,
        store: mlmd.MetadataStore,
        blessings: list[Artifact],
        verdicts: dict[int, Artifact],
    ) -> list[int]:
        """Returns the ids of the statistics behind the blessed models, the newest model first."""
        models = {
            blessing.get_int_custom_property(CURRENT_MODEL)
            for blessing in blessings
            if blessing.get_int_custom_property("blessed") == 1
        }
        behind = [verdicts.get(_verdict_behind(store, model)) for model in sorted(models)]
        behind.reverse()
        return [one.get_int_custom_property(self._property) for one in behind if one is not None]


def _newest(older: dict[int, Artifact], ids: set[int]) -> list[Artifact]:
    return [older[id_] for id_ in sorted(older.keys() & ids)[-1:]]


def _newest_first(older: dict[int, Artifact], ids: list[int]) -> list[Artifact]:
    return [older[id_] for id_ in ids if id_ in older][:1]


def _verdict_behind(store: mlmd.MetadataStore, model: int) -> int:
    """Returns the id of the verdict that the training of `model` started from; 0 for none."""
    made = [e for e in store.get_events_by_artifact_ids([model]) if e.type in _OUTPUT]
    if not made:
        return 0
    used = store.get_events_by_execution_ids([made[0].execution_id])
    ids = [e.artifact_id for e in used if e.type in _INPUT and e.path.steps[0].key == "verdict"]
    return ids[0] if ids else 0


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
