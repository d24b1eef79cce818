"""The defaults of a judging side."""

import types

import numpy as np
import pytest

from recsys.evaluation.figures import Key, UserMeans
from recsys.metrics import Statistics
from recsys.tasks.judging_side import JudgingSide, Measured, Slice

USER = np.array([7, 7, 8, 9])
POOLED = Statistics.of_sums(
    np.array([[1.0, 2], [3, 4], [5, 6]]), lambda sums: sums[..., 0] / sums[..., 1]
)


@pytest.mark.parametrize(
    ("which", "of_rows", "of_users"),
    [
        ([1, 1, 0, 1], ((0.1 + 0.2) / 2 + 0.4) / 2, (1 + 5) / (2 + 6)),
        ([0, 0, 1, 0], 0.3, 3 / 4),
        ([1, 0, 0, 1], (0.1 + 0.4) / 2, None),
    ],
    ids=["two users", "one user", "half a user"],
)
def test_a_slice_has_values_of_rows_and_statistics_of_whole_users(which, of_rows, of_users):
    measured = Measured({"row": np.array([0.1, 0.2, 0.3, 0.4]), "pooled": POOLED}, {}, 0.0)
    part, case = Slice("kind", "name", "queries", np.array(which, bool)), types.SimpleNamespace()
    case.user = USER
    values = JudgingSide.slice_values(None, part, case, measured, ["row", "pooled"])
    means = UserMeans(USER, 100, 0.95)
    for key, x in values.items():
        means.add(Key("model", key), x)
    assert means.mean(Key("model", "row")) == pytest.approx(of_rows)
    assert means.mean(Key("model", "pooled")) == (of_users and pytest.approx(of_users))
