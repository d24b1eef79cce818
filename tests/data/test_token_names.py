"""Names of token rows are written beside the bags and read on first access."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys.config import read_feature
from recsys.data.catalogue import (
    Catalogue,
    FeatureSize,
    Texts,
    open_user_features,
    write_features,
    write_titles,
)
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError

_GENRES = ["", "Drama", "Comédie", "a|b"]


def feature(kind, **options):
    return read_feature({"name": "f", "column": "f", "kind": kind, **options})


@pytest.mark.parametrize(
    ("one", "known", "names"),
    [
        (feature("category"), ["x", "y"], ["", "x", "y"]),
        (feature("categories"), [], [""]),
        (feature("words", hash_buckets=5), [], None),
        (feature("number", buckets=2), [], ["", "bucket 1 of 2", "bucket 2 of 2"]),
    ],
    ids=["category", "categories", "hashed", "number"],
)
def test_a_feature_names_its_rows(one, known, names):
    assert one.token_names(known) == names


def test_the_rows_of_a_date_are_buckets_and_then_months():
    names = feature("date", buckets=3).token_names()
    assert names[3:6] == ["bucket 3 of 3", "January", "February"]
    assert names[15] == "December"
    assert len(names) == 1 + 3 + 12


@pytest.fixture
def folder(tmp_path):
    items = Vocabulary(pa.array(["a", "b"]), np.array([2, 1]))
    write_titles(tmp_path / "catalogue", items, ())
    tables = {"genres": FeatureSize(4, 2), "hashed": FeatureSize(3, 1)}
    bags = pa.table({"row": [2, 1], "genres": [[3, 1], [2, 0]], "hashed": [[1], [2]]})
    write_features(tmp_path / "catalogue", 3, tables, [bags], {"genres": _GENRES})
    return tmp_path / "catalogue"


def test_a_catalogue_gives_the_names_that_were_written(folder):
    genres, hashed = Catalogue.open(folder).features
    assert list(genres.tokens) == _GENRES
    assert [genres.tokens[row] for row in genres.bags[2]] == ["a|b", "Drama"]
    assert hashed.tokens is None


def test_folders_of_before_have_no_names(folder):
    (folder / "genres.tokens.parquet").unlink()
    assert [one.tokens for one in open_user_features(folder, 3)] == [None, None]


def test_names_are_not_read_before_one_is_requested(folder):
    (folder / "genres.tokens.parquet").write_bytes(b"no Parquet")
    tokens = Catalogue.open(folder).features[0].tokens
    assert len(tokens) == 4
    with pytest.raises(RecsysError, match="R230"):
        tokens[1]


def test_names_of_another_table_are_refused(tmp_path):
    pq.write_table(pa.table({"token": _GENRES[:3]}), tmp_path / "genres.tokens.parquet")
    with pytest.raises(RecsysError, match=r"R230.*3 texts of 4"):
        list(Texts(tmp_path / "genres.tokens.parquet", "token", 4))


def test_a_table_needs_a_name_for_each_row(tmp_path):
    with pytest.raises(RecsysError, match=r"R261.*'genres'.*3 names of 4"):
        write_features(tmp_path, 2, {"genres": FeatureSize(4, 2)}, (), {"genres": _GENRES[:3]})
