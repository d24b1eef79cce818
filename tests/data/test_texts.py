"""Texts in a file against the list that was written."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data import catalogue
from recsys.data.catalogue import Texts, are_filled
from recsys.errors import RecsysError

_TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=3), max_size=40)


@given(written=_TEXTS, first=st.integers(0, 2), data=st.data())
@settings(max_examples=50, deadline=None)
def test_texts_of_a_file_are_those_of_the_list(tmp_path_factory, written, first, data):
    path = tmp_path_factory.mktemp("texts") / "titles.parquet"
    pq.write_table(pa.table({"title": pa.array(written, pa.string())}), path, row_group_size=7)
    expected = [""] * first + written
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(catalogue, "_BATCH", 5)
        texts = Texts(path, "title", len(expected), first=first, cure="")
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
            Texts(path, column, n, cure="Run again.")[0]
