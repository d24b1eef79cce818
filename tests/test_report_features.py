"""The report's figures on features, counted by hand."""

import numpy as np
import pytest

from recsys.data.catalogue import Catalogue, FeatureBags, save_features
from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.ingested import FeatureRow, read_features


@pytest.fixture
def artifacts(tmp_path):
    bags = np.array([[0, 0], [1, 2], [0, 0], [3, 0]], np.int32)
    Catalogue(["", "a", "b", "c"], ["", "A", "B", "C"], (FeatureBags("genres", 5, bags),)).save(
        tmp_path / "catalogue"
    )
    save_features(
        [FeatureBags("plan", 3, np.array([[0], [0]], np.int32))], tmp_path / "user_features"
    )
    folder = tmp_path
    return Artifacts({}, {}, folder, folder, folder, None, None)


def test_the_shares_count_those_that_have_a_token(artifacts):
    assert read_features(artifacts) == [
        FeatureRow("items", "genres", "4", "66.7\N{NO-BREAK SPACE}%", "1.5"),
        FeatureRow("users", "plan", "2", "0.0\N{NO-BREAK SPACE}%", "0.0"),
    ]


def test_a_run_without_features_of_users_has_none_to_show(artifacts):
    (artifacts.data / "user_features" / "features.json").unlink()
    (artifacts.data / "user_features" / "plan.npy").unlink()
    (artifacts.data / "user_features").rmdir()
    assert [row.name for row in read_features(artifacts)] == ["genres"]


def test_a_damaged_feature_is_said_in_words(artifacts):
    (artifacts.data / "catalogue" / "genres.npy").write_bytes(b"x")
    with pytest.raises(MissingError, match="genres"):
        read_features(artifacts)
