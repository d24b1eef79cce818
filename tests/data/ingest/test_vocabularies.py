"""Vocabularies from segments: counts, rows that stay, and what is refused."""

import json

import pyarrow as pa
import pytest

from recsys.config import VocabulariesConfig, VocabularyConfig
from recsys.data.example_files import write_examples
from recsys.data.ingest.segment_parts import FOLDER, SegmentPart, write_events, write_index
from recsys.data.ingest.store_writer import make_vocabularies
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError

CUT = 1_700_000_000


def write(folder, parts):
    """Writes `(user, item)` positives of each split, a segment a row."""
    written = []
    for split, rows in parts.items():
        for at, (user, item) in enumerate(rows):
            name = f"{split}-{at}"
            table = pa.table({"user_id": [user], "item_id": [item], "timestamp": [CUT - 9]})
            write_events(folder / FOLDER / name, table)
            written.append(SegmentPart(split, folder / FOLDER / name, 1))
    write_index(folder, written, [])


def make(folder, out, config=None, previous=None):
    out.mkdir()
    make_vocabularies(folder, CUT, {}, previous, out, config or VocabulariesConfig())
    return [Vocabulary.load(out / f"{name}.parquet") for name in ("users", "items")]


@pytest.fixture
def examples(tmp_path):
    folder = tmp_path / "examples"
    train = [("a", "x"), ("b", "x"), ("b", "y")]
    write(folder, {"train": train, "eval": [("b", "w"), ("d", "x")]})
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


def test_a_vocabulary_without_items_is_refused(examples, tmp_path):
    config = VocabulariesConfig(items=VocabularyConfig(min_count=3))
    with pytest.raises(RecsysError, match="R215"):
        make(examples, tmp_path / "out", config)


def test_a_catalogue_without_an_id_of_the_events_is_refused(examples, tmp_path):
    folder = tmp_path / "items" / "Split-all"
    folder.mkdir(parents=True)
    with (folder / "data-00000-of-00001.parquet").open("wb") as sink:
        write_examples(pa.table({"item_id": [f"x{n}" for n in range(200)]}), sink)
    (tmp_path / "out").mkdir()
    with pytest.raises(RecsysError, match="R270"):
        make_vocabularies(
            examples, CUT, {"items": folder.parent / "Split-all"}, None, tmp_path / "out",
            VocabulariesConfig(),
        )  # fmt: skip
