"""Titles and features of items, in a folder and in a bundle, against lists and loops."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data import catalogue
from recsys.data.catalogue import (
    Catalogue,
    FeatureBags,
    Texts,
    are_filled,
    read_catalogue,
    write_catalogue,
)
from recsys.errors import RecsysError
from recsys.savedmodel.signatures import filter_inputs, raw_inputs
from recsys.serving.catalogue_search import ItemFilters

_TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=3), max_size=40)


@given(written=_TEXTS, first=st.integers(0, 2), data=st.data())
@settings(max_examples=50, deadline=None)
def test_texts_of_a_file_are_those_of_the_list(tmp_path_factory, written, first, data):
    path = tmp_path_factory.mktemp("texts") / "titles.parquet"
    pq.write_table(pa.table({"title": pa.array(written, pa.string())}), path, row_group_size=7)
    expected = [""] * first + written
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(catalogue, "_BATCH", 5)
        texts = Texts(path, "title", len(expected), first=first)
        assert are_filled(texts).tolist() == are_filled(expected).tolist()
        assert are_filled(texts).tolist() == [text != "" for text in expected]
        assert (len(texts), [*texts]) == (len(expected), expected)
        part = data.draw(st.slices(len(expected)).filter(lambda s: (s.step or 1) > 0))
        assert texts[part] == expected[part]
        if expected:
            row = data.draw(st.integers(-len(expected), len(expected) - 1))
            assert texts[row] == expected[row]


def test_a_file_with_another_column_or_number_of_texts_is_named(tmp_path):
    path = tmp_path / "titles.parquet"
    pq.write_table(pa.table({"title": ["a", "b"]}), path)
    for column, n in (("id", 2), ("title", 3)):
        with pytest.raises(RecsysError, match=r"R230.*titles.parquet"):
            Texts(path, column, n)[0]


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
    monkeypatch.setattr(catalogue, "_BATCH", block)
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


def test_inputs_have_unique_names():
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
