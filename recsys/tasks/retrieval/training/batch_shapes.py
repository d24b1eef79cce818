"""The shapes of a batch's arrays, with which `recsys plan` compiles a step."""

from __future__ import annotations

from typing import Any

from recsys.data.event_log import ASKED
from recsys.models.lookups import InputSpec
from recsys.tasks.config import TrainStage
from recsys.tasks.retrieval.training.sequences import packing

Shapes = dict[str, tuple[tuple[int, ...], str]]


def batch_shapes(
    stage: TrainStage, model: Any, n_parts: int, n_items: int, has_weights: bool
) -> Shapes:
    """Returns shape and dtype of each array of a batch, by name.

    Args:
        stage: Configs of the training.
        model: The model.
        n_parts: Number of parts that devices split a batch into.
        n_items: Number of rows of the item table.
        has_weights: Whether events have weights.
    """
    config, train = stage.model, stage.train
    n_rows, n_new = packing(config, train, n_parts)
    is_packed = config.over_positions
    n_queries = n_rows * n_new if is_packed else train.batch_size
    n_negatives = train.uniform_negatives + train.hard_negatives.count
    if train.loss.negatives == "catalogue":
        n_negatives = -(-n_items // n_parts) * n_parts
    n_candidates = n_queries + n_negatives

    def size_of(x: InputSpec) -> int:
        if x.side == "item":
            return n_candidates
        of_row = x.name in config.history_facts or x.name.split(".")[0] == "history"
        return n_rows if is_packed and of_row else n_queries

    inputs = model.inputs_of_sides
    if not config.trains_on_history:
        inputs = tuple(x for x in inputs if x.name.split(".")[0] != "history")
    batch: Shapes = {x.name: ((size_of(x), *x.shape), "int32") for x in inputs}
    if is_packed:
        batch |= {"segment": batch["history"], "at": ((n_rows, n_new), "int32")}
        batch |= {ASKED: batch["at"]} if config.reads_times else {}
    batch |= {"item_row": ((n_candidates,), "int32"), "log_q": ((n_candidates,), "float32")}
    if train.user_balance or train.half_life or has_weights:
        batch["weight"] = ((n_queries,), "float32")
    if train.known_positives:
        batch["known"] = ((n_queries, train.known_positives), "int32")
    return batch
