"""Requests in raw ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from recsys.config import VocabularyConfig
from recsys.data.vocabulary import Vocabulary

pytest.importorskip("tensorflow")
from recsys.tasks.serving.requests import raw_probes


@pytest.mark.parametrize("buckets", [0, 3])
def test_raw_probes_mean_the_rows_that_they_were_made_of(buckets):
    config = VocabularyConfig(hash_buckets=buckets)
    ids = ["?", "a", None, "b\n", "??"]
    users = Vocabulary(pa.array(ids), np.ones(5), config=config)
    items = Vocabulary(pa.array(["x", "???"]), np.ones(2), config=config)
    first = users.first_own_row
    user_row = np.array([*range(first), first, first + 1, first + 3, first + 4])
    history = np.array([[items.first_own_row, 0], *[[0, 0]] * (len(user_row) - 1)])
    user_id, given_ids = raw_probes(users, items, user_row, history)
    is_id = user_id != ""
    np.testing.assert_array_equal(users.rows(user_id[is_id].tolist()), user_row[is_id])
    assert user_row[~is_id].tolist() == ([] if buckets == 0 else [0])
    assert given_ids[0].tolist() == ["x", "", "????"]
    assert {row[-1] for row in given_ids} == {"????"}
