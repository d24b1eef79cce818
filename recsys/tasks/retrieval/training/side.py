"""The training side of retrieval: choice of a model, checks before the first step, batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.catalogue import Catalogue
from recsys.data.dataset import Data
from recsys.data.hold_out import KeptEvents
from recsys.data.shuffle import BatchPart
from recsys.distributed.coordination import note_on_primary
from recsys.errors import RecsysError, UsageError
from recsys.models.config import AutoConfig, TwoTowerConfig
from recsys.models.lookups import InputSpec
from recsys.registry import name_of
from recsys.system.events import emit
from recsys.tasks.config import TrainConfig, TrainStage
from recsys.tasks.retrieval.probe import save_candidates, save_probe
from recsys.tasks.retrieval.training.auto import candidates, described, for_data, outgrown
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.epoch_work import RetrievalEpochWork, Validator
from recsys.tasks.retrieval.training.pair_weight import has_open_weight, is_chosen, without_a_few
from recsys.tasks.retrieval.training.sequences import SequenceSource, packing
from recsys.tasks.training_side import DataShape, StageT, TrainingSide

_MANY_HELD = 0.01
"""Share of the events above which a second training sees those that weights held back."""
_MANY = 0.02
"""Share of users without an order in time above which there is a remark."""


class RetrievalTraining(TrainingSide):
    """Trains on positives, in batches of queries, their positives, and drawn negatives."""

    epoch_work = RetrievalEpochWork

    @classmethod
    def chosen(cls, stage: StageT, data: Data | DataShape, earlier: TrainStage | None) -> StageT:
        """Returns the stage with a model; replaces `model: auto` by a choice for the data."""
        if not isinstance(stage.model, AutoConfig):
            return stage
        chosen = for_data(stage, data, earlier)
        if isinstance(data, DataShape):
            return chosen
        note_on_primary(f"The config leaves the model to the data: {described(chosen)}.")
        if earlier is not None and stage.model.minutes:
            note_on_primary(
                "That is the earlier model's choice. A run with warm_start=null compares anew."
            )
        elif earlier is not None and (other := outgrown(stage, data, earlier)) is not None:
            note_on_primary(
                f"That is the earlier model's choice; the data would choose now: {other}."
                " A run with warm_start=null changes to it."
            )
        return chosen

    @classmethod
    def candidates(cls, stage: StageT, data: Data) -> dict[str, StageT]:
        """Returns stages to compare before a training, if `model: auto` has `minutes`."""
        compares = isinstance(stage.model, AutoConfig) and stage.model.minutes
        return candidates(stage, data) if compares else {}

    @classmethod
    def resolved(cls, config: Any, train: TrainConfig, data: Data) -> Any:
        """Returns a model's config with the `history_of` that the order of the events permits.

        Raises:
            UsageError: The config needs an order or times that the events lack (R336).
        """
        store, order = data.store, data.store.split.order
        if train.half_life and order != "time":
            key = "train.half_life"
            cure = f"Name their column by data.interactions.columns.timestamp, or leave {key} out."
            raise UsageError("R336", f"{key} needs events that have times.", cure, store.split.text)
        ordered = [name_of("term", term) for term in config.score_terms if term.needs_order]
        if ordered and order == "none":
            rule, cure = "needs events that have an order.", "Leave it out of model.terms."
            raise UsageError("R336", f"The term {ordered[0]} {rule}", cure, store.split.text)
        if config.history_of == "past" and order == "none":
            rule = "model.history_of: past needs events that have an order."
            cure = "Leave model.history_of out, or set it to others."
            raise UsageError("R336", rule, cure, store.split.text)
        history_of = config.history_of or ("others" if order == "none" else "past")
        return config.model_copy(update={"history_of": history_of})

    @classmethod
    def uneven(cls, train: TrainConfig, n_parts: int) -> UsageError | None:
        """Returns the error for a batch that can't be divided into parts and groups, or None."""
        groups = train.negative_groups
        parts = f"{n_parts}, the parts that devices split a batch into"
        if groups % n_parts and n_parts % groups:
            rule = f"train.negative_groups must divide {parts}, or be a multiple of it."
            fewer = max(n for n in range(1, groups) if n_parts % n == 0)
            return UsageError("R321", rule, f"Use {fewer}.", groups)
        multiple = max(n_parts, groups)
        if groups > n_parts:
            parts = f"{groups}, the parts of train.negative_groups"
        numbers = {
            "batch_size": train.batch_size,
            "uniform_negatives": train.uniform_negatives,
        }
        if train.loss.negatives == "catalogue":  # It draws none.
            del numbers["uniform_negatives"]
        for key, value in numbers.items():
            if value % multiple:
                rule = f"train.{key} must be a multiple of {parts}."
                fitting = -(-value // multiple) * multiple
                return UsageError("R321", rule, f"Use {fitting}.", value)
        return None

    @classmethod
    def batch_shapes(
        cls, stage: TrainStage, model: Any, n_parts: int, n_items: int, has_weights: bool
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Returns shape and dtype of each array of a batch."""
        config, train = stage.model, stage.train
        n_rows, n_new = packing(config, train, n_parts)
        is_packed = config.over_positions
        n_queries = n_rows * n_new if is_packed else train.batch_size
        n_negatives = train.uniform_negatives
        if train.loss.negatives == "catalogue":
            n_negatives = -(-n_items // n_parts) * n_parts
        n_candidates = n_queries + n_negatives

        def size_of(x: InputSpec) -> int:
            if x.side == "item":
                return n_candidates
            of_row = x.name.split(".")[0] == "history"
            return n_rows if is_packed and of_row else n_queries

        inputs = model.inputs_of_sides
        if not config.trains_on_history:
            inputs = tuple(x for x in inputs if x.name.split(".")[0] != "history")
        batch: dict[str, tuple[tuple[int, ...], str]] = {
            x.name: ((size_of(x), *x.shape), x.dtype) for x in inputs
        }
        if is_packed:
            batch |= {"segment": batch["history"], "at": ((n_rows, n_new), "int32")}
        batch |= {"item_row": ((n_candidates,), "int32"), "log_q": ((n_candidates,), "float32")}
        if train.user_balance or train.half_life or has_weights:
            batch["weight"] = ((n_queries,), "float32")
        if train.known_positives:
            batch["known"] = ((n_queries, train.known_positives), "int32")
        return batch

    @classmethod
    def default_space(cls, stage: TrainStage) -> dict[str, Any]:
        """Returns the default ranges of tuning; empty except for the two-tower model."""
        model, train = stage.model, stage.train
        if not isinstance(model, TwoTowerConfig):
            return {}
        space: dict[str, Any] = {
            "train.table_learning_rate": "log:0.001..0.1",
            "train.epochs": f"{max(2, train.epochs // 2)}..{max(4, 2 * train.epochs)}",
            "model.dim": [64, 128, 192, 256],
            "model.history_dropout": "0.0..0.6",
        }
        if model.widths is not None or model.needs_order:
            space["train.tower_learning_rate"] = "log:0.0003..0.01"
        if model.similarity == "cosine":
            space["model.temperature"] = "log:0.03..0.3"
        if train.loss.negatives != "catalogue":
            space["train.uniform_negatives"] = [256, 512, 1024, 2048]
        return space

    def events(self, train: TrainConfig) -> KeptEvents:
        """Returns the events that training sees: without those that choose a weight."""
        if train.validation is not None or not is_chosen(self.stage.model):
            return super().events(train)
        return without_a_few(self.store.train, self.store.split)

    def check(self, events: KeptEvents, train: TrainConfig, n_parts: int) -> list[str]:
        """Checks the data before the first step, and returns remarks on them."""
        return check_events(events, self.inputs.catalogue, self.stage.model.history_of)

    def source(
        self, events: KeptEvents, train: TrainConfig, multiple: int, part: BatchPart
    ) -> BatchSource:
        """Returns the batches of a training."""
        source = SequenceSource if self.stage.model.over_positions else BatchSource
        inputs = self.inputs
        of_events = inputs.event_inputs(self.stage.model)
        return source(
            events,
            inputs.catalogue,
            self.stage.model,
            train,
            inputs.user_features,
            tuple(x.feature for x in of_events if x.feature and not x.of_history),
            tuple(x.feature for x in of_events if x.feature and x.of_history),
            multiple=multiple,
            part=part,
        )

    def adapt(self, model: Any, events: KeptEvents) -> None:
        """Sets the neighbours, ages and token weights that a model computes from the data."""
        if model.adapted:
            text = "finds neighbours and ages of items"
            emit("progress", done=0, total=1, text=text)
        model.adapt(events, self.inputs)

    def reason_against(self, until: int) -> str | None:
        """Returns why a model trained until `until` can't be validated, or None."""
        stage, train_log = self.stage, self.store.train
        if stage.train.validation is None:
            return None
        events = self.events(stage.train)
        if not (np.asarray(train_log.timestamp[events.held]) >= until).any():
            return "it was trained on all that validation holds back"
        try:
            Validator(
                events, self.inputs, stage.model, stage.train.validation, until, stage.repeats
            )
        except RecsysError:
            return "all that validation holds back since its training are items seen before"
        return None

    def trains_again(self, events: KeptEvents, train: TrainConfig) -> bool:
        """Returns whether a second training follows, also if weights held back many events."""
        is_held = train.validation is None and len(events.held) > _MANY_HELD * len(events.log)
        return is_held or super().trains_again(events, train)

    def take_over(self, model: Any, validated: Any) -> None:
        """Gives a model that is trained anew on all events the weights of terms."""
        spec = model.spec
        terms = list(spec.config.terms)
        for place, term in enumerate(terms):
            if has_open_weight(term):
                weight = float(validated.terms[name_of("term", term)].weight.value)
                terms[place] = term.model_copy(update={"weight": weight})
        config = spec.config.model_copy(update={"terms": tuple(terms)})
        model.spec = spec.model_copy(update={"config": config})

    def write(self, folder: Path, model: Any) -> None:
        """Writes the candidates, and queries with embeddings that an export must reproduce."""
        save_candidates(folder, model, self.inputs)
        save_probe(folder, model, self.inputs, self.store.train)


# --- checks before the first step, so that a run neither fails later nor learns nothing


def check_events(
    events: KeptEvents, catalogue: Catalogue, history_of: str | None = "others"
) -> list[str]:
    """Checks that a model can learn from the training positives.

    Args:
        events: The positives that training sees.
        catalogue: The items.
        history_of: `model.history_of`: whether times matter.

    Returns:
        Sentences on remarkable facts that are no errors.

    Raises:
        RecsysError: There is one user or one item, no known item, or no weight above 0.
    """
    counts = events.item_counts(catalogue.n_rows)
    n_known = int(counts[catalogue.is_item].sum())
    if len(events) and not n_known:
        raise RecsysError(
            "R325",
            "At least one training positive must be of an item with a row of its own.",
            "Lower data.vocabulary.items.min_count, or check that the interactions and the"
            " items write their ids the same way.",
            f"{len(events)} training positives of unknown items",
        )
    n_items, n_users = int((counts > 0).sum()), events.n_users
    if n_items < 2 or n_users < 2:
        raise RecsysError(
            "R324",
            "Training positives must be of at least two users and two items.",
            "Add data; check whether the columns are mapped correctly.",
            {"training positives": len(events), "users": n_users, "items": n_items},
        )
    n_timeless = _timeless_users(events) if history_of != "others" else 0
    of_events = {
        "are of items without a row of their own": len(events) - n_known,
        "have weight 0 and teach nothing": _weights_of_zero(events),
    }
    remarks = [
        f"{count:,} of {len(events):,} training positives {what}."
        for what, count in of_events.items()
        if count
    ]
    if n_timeless > _MANY * n_users:
        remarks.append(
            f"{n_timeless:,} of {n_users:,} users did all that they did in one second, so no"
            " history comes before it: model.history_of=others takes the user's other items."
        )
    n_single = _single_users(events)
    if n_single == n_users:
        remarks.append(
            "Every user has one training positive, so no example has a history, and nothing says"
            " what goes together: the model will probably be worse than popularity."
            " docs/evaluation.md, Worse than a baseline, names a config for such data."
        )
    elif 2 * n_single > n_users:
        remarks.append(
            f"{n_single:,} of {n_users:,} users have one training positive, which says what is"
            " popular and not what goes together: see whether the baselines are ahead."
        )
    return remarks


def _timeless_users(events: KeptEvents) -> int:
    """Returns the number of users with several events, all of them at the same time."""
    n = 0
    for shard in events.log.shards:
        first, end = shard.offsets[:-1], shard.offsets[1:]
        first, last = first[end - first > 1], end[end - first > 1] - 1
        n += int((shard.timestamp[first] == shard.timestamp[last]).sum())
    return n


def _single_users(events: KeptEvents) -> int:
    """Returns the number of users with one kept event."""
    return sum(int((np.diff(shard.offsets) == 1).sum()) for shard in events.shards)


def _weights_of_zero(events: KeptEvents) -> int:
    """Returns the number of kept weights that are 0."""
    n_zero = 0
    for part in events.shards:
        if (weight := part.shard.weight) is not None:
            n_zero += int((weight == 0).sum()) - int((weight[part.held] == 0).sum())
    if n_zero == len(events):
        raise RecsysError(
            "R326",
            "At least one training positive must have a weight above 0.",
            "Check the column data.interactions.columns.weight.",
            f"{n_zero} weights of 0",
        )
    return n_zero
