"""Parity of a pair: both stages, and the score that orders candidates. Imports no Keras or JAX."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

import numpy as np

from recsys.pair.score import Score
from recsys.savedmodel.parity import Reference, Report, Request, difference
from recsys.savedmodel.signatures import RANK, SCORE
from recsys.tasks.ranking.serving.parity import RankingReference
from recsys.tasks.retrieval.serving.parity import RetrievalReference

_RETRIEVAL, _RANKING, _SCORE = "retrieval", "ranking", "score.json"


@dataclasses.dataclass(frozen=True)
class PairReference(Reference):
    """The results that a pair's bundle must reproduce.

    Attributes:
        retrieval: Results of the first stage.
        ranking: Results of the second.
        score: Formula of the score; empty: the first label.
        labels: Names of the labels.
    """

    retrieval: RetrievalReference
    ranking: RankingReference
    score: str
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.retrieval) + len(self.ranking)

    def save(self, folder: Path) -> None:
        """Writes the reference into `folder`, which exists."""
        for name, part in ((_RETRIEVAL, self.retrieval), (_RANKING, self.ranking)):
            (folder / name).mkdir()
            part.save(folder / name)
        (folder / _SCORE).write_text(json.dumps([self.score, self.labels]))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads what `save` wrote."""
        score, labels = json.loads((folder / _SCORE).read_text())
        retrieval = RetrievalReference.load(folder / _RETRIEVAL)
        return cls(retrieval, RankingReference.load(folder / _RANKING), score, tuple(labels))

    def check(self, model: Any, bundle: Path, report: Report) -> float:
        """Compares both stages with training, and the score with NumPy's of the same labels.

        Raises:
            RecsysError: A difference exceeds the tolerance (R530 … R533, R538).
        """
        worst = [stage.check(model, bundle, report) for stage in (self.retrieval, self.ranking)]
        outputs = self.ranking.outputs(model.signatures[RANK])
        predicted = {name: outputs[name] for name in self.labels}
        expected = np.asarray(Score.parse(self.score, self.labels).value(predicted), np.float32)
        found = difference("R530", f"{SCORE} of {RANK}", outputs[SCORE], expected)
        report(f"the scores of {len(self.ranking):,} rows are the formula's")
        return max(*worst, found)

    def request(self, model: Any, number: int) -> Request:
        """Returns requests to the stages in turn."""
        stage = (self.retrieval, self.ranking)[number % 2]
        return stage.request(model, number // 2)
