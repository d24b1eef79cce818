"""The contents of a pair's bundle: one SavedModel with the signatures of both stages.

The signatures are the retriever's, and `rank`, which takes what the retriever says of the items,
`retriever_rank` and `retriever_score` `[batch, items]` float32 (`recsys.pair.lists`): the rank in
its list from 1 on, 0 for an item that isn't in it, and -1, the padding, if the list is unknown; and
the score in standard deviations from the mean of the list. Beside the labels, `rank` returns
`score`, the formula `ranker.score`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from recsys.errors import UsageError
from recsys.models.ranking_model import RETRIEVER
from recsys.pair.config import RankerConfig
from recsys.pair.folder import RANKER, read_pair
from recsys.pair.lists import UNKNOWN, list_features
from recsys.pair.parity import PairReference
from recsys.registry.file_option import IN_FOLDER
from recsys.savedmodel.signatures import (
    LIST_PADDING,
    LIST_RANK,
    LIST_SCORE,
    ORDER,
    RANK,
    RANK_ENCODED,
    SCORE,
    Arrays,
)
from recsys.tasks.ranking.serving.graph import Rank
from recsys.tasks.ranking.serving.side import RankingServing
from recsys.tasks.retrieval.serving.graph import Retrieval
from recsys.tasks.retrieval.serving.side import RetrievalServing
from recsys.tasks.serving.queries import Tensors, traced
from recsys.tasks.serving_side import ServingSide, Sources


class PairRank(Rank):
    """Predicts the labels of items that a retriever found, and the score that orders them."""

    pair: RankerConfig

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        numbers = {name: tf.TensorSpec([None, None], tf.float32, name) for name in LIST_PADDING}
        return {
            RANK: traced(self.rank_listed, {**self.texts, **numbers}),
            RANK_ENCODED: traced(self.rank_encoded, self.encoded_rows),
        }

    def rank_listed(
        self,
        user_id: tf.Tensor,
        history: tf.Tensor,
        item_id: tf.Tensor,
        retriever_rank: tf.Tensor,
        retriever_score: tf.Tensor,
        **columns: tf.Tensor,
    ) -> Tensors:
        """Answers as `rank`, and returns the `score` `[b, items]`."""
        of_list = {LIST_RANK: retriever_rank, LIST_SCORE: retriever_score}
        n = tf.shape(item_id)[1]
        rank, score = (_as_wide(x, n, LIST_PADDING[name]) for name, x in of_list.items())
        inputs = {x.name for x in self._rows.model.inputs_of_sides}
        features = {RETRIEVER: list_features(rank, score, self.pair.candidates, xp=ops)}
        read = {name: x for name, x in features.items() if name in inputs}
        answers = self.rank_with(read, user_id, history, item_id, columns)
        del answers[ORDER]  # Items are ordered by the score.
        return {**answers, SCORE: self.pair.formula.value(answers)}


def _as_wide(values: tf.Tensor, n: tf.Tensor, padding: float) -> tf.Tensor:
    """Returns numbers `[b, n]` of `[b, any]`."""
    missing = tf.maximum(0, n - tf.shape(values)[1])
    return tf.pad(values[:, :n], [[0, 0], [0, missing]], constant_values=padding)


class PairModule(tf.Module):
    """Both stages.

    Args:
        retrieval: The first stage.
        ranking: The second.
    """

    def __init__(self, retrieval: Retrieval, ranking: PairRank) -> None:
        super().__init__(name="pair")
        self._retrieval, self._ranking = retrieval, ranking

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by the name of their signature."""
        return {**self._ranking.signatures(), **self._retrieval.signatures()}


class RankingOfPair(RankingServing):
    """The second stage of a pair."""

    module_class = PairRank

    def _of_lists(self, places: np.ndarray | None) -> Arrays:
        """Returns rank and score `[n, 1]` in the lists that `retriever` `[n, 3]` is of."""
        if places is None:
            return {}
        n_candidates = read_pair(self.sources.model).candidates
        place, score, is_listed = places.T
        rank = (n_candidates + 1) ** (1 - place.astype(np.float64))
        rank = np.where(is_listed == 0, UNKNOWN, np.where(is_listed > 0, rank, 0))
        columns = {LIST_RANK: rank, LIST_SCORE: score}
        return {name: x[:, None].astype(np.float32) for name, x in columns.items()}


class PairServing(ServingSide):
    """Bundles whose SavedModel retrieves candidates and ranks them.

    It has one copy of the tables that both stages share.

    Raises:
        RecsysError: An input is damaged, or doesn't fit the others.
        UsageError: A rule of `ranker` names values that items don't have (R547).
    """

    answers = "lists"
    card = "recsys.pair:model_card.jinja"

    def __init__(self, stage: Any, sources: Sources) -> None:
        super().__init__(stage, sources)
        folder = sources.model / RANKER
        self.pair = read_pair(folder)
        # The SavedModel retrieves all candidates of the ranker.
        most = max(stage.export.k, self.pair.candidates)
        wide = stage.model_copy(update={"export": stage.export.model_copy(update={"k": most})})
        self.retrieval = RetrievalServing(wide, sources)
        self.ranking = RankingOfPair(stage, dataclasses.replace(sources, model=folder))
        of_retriever = {table.name: table for table in self.retrieval.saved.model.embedding.tables}
        ranker = self.ranking.saved.model
        for table in (t for t in ranker.embedding.tables if t.name in ranker.shared_tables):
            one = of_retriever[table.name]
            table.read_from(one.embeddings, one.for_lookups)
        self._check_rules()

    def module(self) -> PairModule:
        """Returns the module with the signatures."""
        ranking: Any = self.ranking.module()
        ranking.pair = self.pair
        return PairModule(self.retrieval.module(), ranking)

    def write_files(self, folder: Path) -> dict[str, Any]:
        """Writes the retriever's files; the ranker's are the same."""
        fields, ranker = self.retrieval.write_files(folder), self.ranking.fields()
        options = self.pair.model_dump(mode="json")
        names = ("candidates", "deadline_ms", "diversity", "max_per_value", "only")
        fields |= {name: {**ranker.pop(name), **fields[name]} for name in ("context", "history")}
        users = [*dict.fromkeys([*fields["user_columns"], *ranker.pop("user_columns")])]
        del ranker["counts"]
        ranker["config"] = self.ranking.saved.stage.model_dump(mode="json", context=IN_FOLDER)
        score = self.pair.score or ranker["labels"][0]
        return {
            **fields,
            "k": min(self.stage.export.k, fields["k"]),
            "user_columns": users,
            RANKER: {**ranker, **{name: options[name] for name in names}, SCORE: score},
        }

    def reference(self) -> PairReference:
        """Returns the results in training of both stages."""
        first: Any = self.retrieval.reference()
        second: Any = self.ranking.reference()
        return PairReference(first, second, self.pair.score, tuple(self.pair.labels))

    def warm_up(self, names: Mapping[str, Sequence[str]]) -> Mapping[str, Arrays]:
        """Returns requests for the probes of each stage."""
        rest = {name: inputs for name, inputs in names.items() if name != RANK}
        return {**self.retrieval.warm_up(rest), **self.ranking.warm_up({RANK: names[RANK]})}

    def card_fields(self) -> dict[str, Any]:
        """Returns the fields of the model card of both stages."""
        fields, ranking = self.retrieval.card_fields(), self.ranking.card_fields()
        for name in ("context", "history"):  # Those of both stages are in the manifest.
            del fields[name]
        fields["tags"] = ["recommendation", "retrieval", "ranking", "keras"]
        return {**fields, "given": ranking["given"], "ranker_loss": ranking["loss"]}

    def _check_rules(self) -> None:
        """Raises `UsageError` if a rule names a feature without named values, or an unknown one."""
        features = self.retrieval.saved.catalogue.features
        values = {f.name: set(f.tokens) for f in features if f.tokens is not None}
        pair = self.pair
        for key, names in (("only", pair.only), ("max_per_value", pair.max_per_value)):
            for name in names:
                if name not in values:
                    listed = ", ".join(values) or "none"
                    rule = f"ranker.{key} must name features of items whose values have names."
                    raise UsageError("R547", rule, f"Name one of them: {listed}.", name)
        for name, only in pair.only.items():
            if unknown := [value for value in only if value not in values[name]]:
                rule = f"ranker.only.{name} must be values that items have."
                raise UsageError("R547", rule, "Correct it, or leave it out.", unknown[0])
