"""Vocabularies from examples, by Beam: counts, rows that stay, and what is refused."""

import json

import apache_beam as beam
import pyarrow as pa
import pytest

from recsys.config import VocabulariesConfig, VocabularyConfig
from recsys.data.examples import write_examples
from recsys.data.ingest.vocabularies import make_vocabularies
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError

pytestmark = pytest.mark.pipeline

CUT = 1_700_000_000


def write(folder, split, rows):
    """Writes `(user, item, label)` rows, one file of examples a row."""
    (folder / f"Split-{split}").mkdir(parents=True, exist_ok=True)
    for at, (user, item, label) in enumerate(rows):
        table = pa.table(
            {"user_id": [user], "item_id": [item], "timestamp": [CUT - 9], "label": [label]}
        )
        with (folder / f"Split-{split}" / f"data-{at:05d}.parquet").open("wb") as sink:
            write_examples(table, sink)


def make(folder, out, config=None, previous=None):
    config = config or VocabulariesConfig()
    make_vocabularies(folder, CUT, {}, previous, out, config, beam.Pipeline())
    return [Vocabulary.load(out / f"{name}.parquet") for name in ("users", "items")]


@pytest.fixture
def examples(tmp_path):
    folder = tmp_path / "examples"
    write(folder, "train", [("a", "x", 1), ("b", "x", 1), ("b", "y", 1), ("c", "z", 0)])
    write(folder, "eval", [("b", "w", 1), ("d", "x", 1)])
    return folder


def test_training_positives_alone_are_counted(examples, tmp_path):
    users, items = make(examples, tmp_path / "out")
    assert users.names_of_rows() == ["", "b", "a"]
    assert items.names_of_rows() == ["", "x", "y"]
    assert items.row_counts.tolist() == [0, 2, 1]
    diff = json.loads((tmp_path / "out" / "diff.json").read_text())
    assert [diff["users"]["new"], diff["items"]["new"]] == [2, 2]
    assert diff["users"]["unknown_eval_share"] == 0.5
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "diff.json",
        "items.parquet",
        "users.parquet",
    ]


def test_rows_stay_where_a_vocabulary_goes_on(examples, tmp_path):
    make(examples, tmp_path / "first")
    tomorrow = tmp_path / "tomorrow"
    write(tomorrow, "train", [("e", "y", 1), ("e", "v", 1), ("a", "y", 1)])
    write(tomorrow, "eval", [])
    users, items = make(tomorrow, tmp_path / "second", previous=tmp_path / "first")
    assert users.names_of_rows() == ["", "b", "a", "e"]
    assert items.names_of_rows() == ["", "x", "y", "v"]
    assert items.row_counts.tolist() == [0, 0, 2, 1]


def test_a_vocabulary_without_items_is_refused(examples, tmp_path):
    config = VocabulariesConfig(items=VocabularyConfig(min_count=3))
    with pytest.raises(RecsysError, match="R215"):
        make(examples, tmp_path / "out", config)
