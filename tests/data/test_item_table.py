"""The catalogue of a bundle as people see it, and its filters, against loops over the items."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data import item_table as of_bundle
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.item_table import read_catalogue, write_catalogue
from recsys.savedmodel.signatures import filter_inputs, raw_inputs
from recsys.serving.catalogue_search import ItemFilters

_TOKENS = ["", "Drama", "Sci-Fi", "ü"]


def written(folder, n, seed=0):
    rng = np.random.default_rng(seed)
    ids = ["", *(f"i{row}" if row % 5 else "" for row in range(1, n + 1))]
    bags = rng.integers(0, 4, (n + 1, 3)).astype(np.int32)
    title = rng.integers(0, 2, (n + 1, 1)).astype(np.int32)
    features = (
        FeatureBags("genres", 4, bags, _TOKENS),
        FeatureBags("hashed", 4, bags),
        FeatureBags("title", 2, title, ["", "short"]),
    )
    write_catalogue(folder, Catalogue(ids, [f"The {id_}" for id_ in ids], features))
    names = [[_TOKENS[token] for token in bag if token] for bag in bags[1:]]
    return ids[1:], names, [["short"] * int(one[0]) for one in title[1:]]


@pytest.mark.parametrize("block", [4, 1000])
@pytest.mark.parametrize("n", [0, 1, 11])
def test_every_item_row_has_a_line_with_the_names_of_its_tokens(tmp_path, monkeypatch, n, block):
    monkeypatch.setattr(of_bundle, "_ROWS", block)
    ids, genres, titles = written(tmp_path, n)
    table = pq.read_table(tmp_path / "catalogue" / "items.parquet")
    assert table.column_names == ["id", "title", "genres", "feature_title"]
    assert table["genres"].type == pa.list_(pa.string())
    assert table["id"].to_pylist() == ids
    assert table["title"].to_pylist() == [f"The {id_}" for id_ in ids]
    assert table["genres"].to_pylist() == genres
    assert table["feature_title"].to_pylist() == titles
    assert list(read_catalogue(tmp_path, n + 1)) == ["genres", "title"]


@given(
    seed=st.integers(0, 99),
    genres=st.lists(st.sampled_from([*_TOKENS[1:], "no such genre"]), max_size=3),
    titles=st.lists(st.just("short"), max_size=1),
)
def test_items_are_allowed_by_each_feature(tmp_path_factory, seed, genres, titles):
    folder = tmp_path_factory.mktemp("any")
    _, of_genres, of_titles = written(folder, 20, seed)
    filters = ItemFilters(read_catalogue(folder, 21), 21)
    wishes = {"only_genres": genres, "only_title": titles}
    inputs = {
        name: np.array([[text.encode() for text in [*texts, ""]]], object)
        for name, texts in wishes.items()
    }
    [(places, allowed)] = filters.groups(inputs, np.array([0]))
    assert places.tolist() == [0]
    found = np.ones(20, bool) if allowed is None else allowed[1:]
    expected = [
        (not genres or bool(set(genres) & set(its)))
        and (not titles or bool(set(titles) & set(own)))
        for its, own in zip(of_genres, of_titles, strict=True)
    ]
    assert found.tolist() == expected


def test_inputs_have_names_of_their_own():
    assert filter_inputs(["genres", "a-b", "a_b"]) == {
        "only_genres": "genres",
        "only_a_b": "a-b",
        "only_a_b_2": "a_b",
    }
    # No raw column is taken for a filter, or for an input of a signature.
    assert raw_inputs(["age", "only_genres", "exclude_ids", "9 lives"]) == {
        "age": "age",
        "column_only_genres": "only_genres",
        "exclude_ids_2": "exclude_ids",
        "column_9_lives": "9 lives",
    }
