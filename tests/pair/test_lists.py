"""The features of a retriever's list, in numpy and in Keras, against literal numbers."""

import math

import numpy as np
import pytest
from keras import ops

from recsys.pair.lists import UNKNOWN, list_features, normalised

INF = math.inf


@pytest.mark.parametrize("xp", [np, ops], ids=["numpy", "keras"])
def test_features_tell_the_rank_and_the_score_within_the_list(xp):
    scores = np.float32([[5, 3, 1, -INF], [7, 7, -INF, -INF], [-INF] * 4])
    own = np.asarray(normalised(scores, xp))
    high = math.sqrt(1.5)
    expected = [[high, 0, -high, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(own, expected, atol=1e-6)
    np.testing.assert_allclose(np.asarray(normalised(scores * 9 + 4, xp)), own, atol=1e-5)
    rank = np.float32([1, 3, 8, 0, UNKNOWN])
    found = list_features(rank, np.float32([0.5, -9, 6, 2, 2]), 8, xp)
    expected = [[1, 0.5, 1], [0.5, -5, 1], [1 - math.log(8, 9), 5, 1], [0, 0, -1], [0, 0, 0]]
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-6)
    assert found.dtype == np.float32
