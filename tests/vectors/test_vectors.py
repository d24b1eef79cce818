"""Item vectors for search engines: complete, comparable night by night, whole or not there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

from recsys.bundles import bundle as bundles
from recsys.cli import main
from recsys.data.catalogue import Catalogue, FeatureBags, write_catalogue
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError, UsageError
from recsys.system import manifest as manifests
from recsys.vectors import VectorPublication, publish_vectors

DIM = 4
DOCS = ROOT / "docs"
_GENRES = ("", "Drama", "Comedy", "Sci-Fi")
_YEARS = ("", "1995", "2001")


def make_bundle(folder, ids, seed=0, vectors=None, bias=False, years=None):
    """Writes what vectors are published of: rows of `ids`, where None is no item."""
    (folder / "vocabulary").mkdir(parents=True)
    n_rows = len(ids) + 1
    rng = np.random.default_rng(seed)
    if vectors is None:
        vectors = rng.normal(size=(n_rows, DIM)).astype(np.float32)
    np.save(folder / "item_embeddings.npy", vectors)
    Vocabulary(pa.array(ids, pa.string()), np.ones(len(ids))).save(
        folder / "vocabulary" / "items.parquet"
    )
    rng = np.random.default_rng(seed + 1)
    genres = rng.integers(0, 4, (n_rows, 2)).astype(np.int32)
    year = rng.integers(0, 3, (n_rows, 1)).astype(np.int32)
    catalogue = Catalogue(
        ["", *(id_ or "" for id_ in ids)],
        ["", *(f"Title {id_}" if id_ else "" for id_ in ids)],
        (
            FeatureBags("genres", 4, genres, _GENRES),
            FeatureBags("year", 3, year, years or _YEARS),
            FeatureBags("hashed", 4, genres),
        ),
    )
    write_catalogue(folder, catalogue)
    width = DIM - 1 if bias else None
    bundles.write_manifest(folder, {"name": "tiny", "direction_width": width})
    return folder


def read(folder):
    """Returns the rows of all Parquet files of a folder, in their order."""
    return [
        row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def example_of(engine):
    """Returns the first example of an engine in the docs."""
    text = (DOCS / "vectors.md").read_text().partition(f"## {engine}")[2]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]


def code_of(call):
    with pytest.raises(RecsysError) as caught:
        call()
    return caught.value.code


def test_every_item_comes_with_its_vector_and_what_is_known_of_it(tmp_path):
    ids = ["a", None, "é\n" + "x" * 300, "d"]
    bundle = make_bundle(tmp_path / "7", ids)
    published = publish_vectors(bundle, tmp_path / "out", shard_rows=2)
    assert published == VectorPublication(tmp_path / "out" / "1", 3, 0, DIM)
    vectors = np.load(bundle / "item_embeddings.npy")
    lines = pq.read_table(bundle / "catalogue" / "items.parquet").to_pylist()
    expected = [
        {**line, "embedding": vectors[row].tolist()}
        for row, line in enumerate(lines, 1)
        if line["id"]
    ]
    assert read(published.folder / "items") == expected
    first = pq.read_schema(published.folder / "items" / "part-00000.parquet")
    assert first.field("embedding").type == pa.list_(pa.float32(), DIM)
    assert [x.name for x in first] == ["id", "embedding", "title", "genres", "year"]
    assert len(list((published.folder / "items").iterdir())) == 2
    manifest = json.loads((published.folder / "manifest.json").read_text())
    assert manifest["model"]["version"] == 7
    assert manifest["model"]["digest"] == bundles.manifest_digest(bundle)
    assert (manifest["dim"], manifest["metric"], manifest["bias"]) == (DIM, "dot product", None)
    manifests.verify_folder(published.folder / "manifest.json")


def test_a_model_folder_and_its_bundle_publish_the_same(exported_world, tmp_path):
    rows = [
        read(publish_vectors(source, tmp_path / source.name).folder / "items")
        for source in (exported_world.model, exported_world.bundle)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 19


def test_the_dot_product_is_the_score_with_its_bias(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", ["a", "b"], bias=True)
    published = publish_vectors(bundle, tmp_path / "out")
    manifest = json.loads((published.folder / "manifest.json").read_text())
    assert manifest["bias"] == "last number; a query has 1 there"
    assert manifest["dim"] == DIM


def test_chosen_columns_and_no_others_are_published(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", ["a", "b"])
    for number, columns in enumerate((["genres"], [])):
        folder = publish_vectors(bundle, tmp_path / "out", columns=columns).folder
        assert pq.read_schema(folder / "items" / "part-00000.parquet").names[2:] == columns
        assert folder.name == str(number + 1)


def test_deletions_are_the_ids_that_the_publication_before_had(tmp_path):
    out = tmp_path / "out"
    publish_vectors(make_bundle(tmp_path / "first", [f"i{n}" for n in range(9)]), out, shard_rows=4)
    second = make_bundle(tmp_path / "second", ["i8", "new", None, "i2"])
    published = publish_vectors(second, out)
    gone = [f"i{n}" for n in (0, 1, 3, 4, 5, 6, 7)]
    assert published.deleted == len(gone)
    assert pq.read_table(published.folder / "deleted.parquet")["id"].to_pylist() == gone
    assert publish_vectors(second, out).deleted == 0
    assert sorted(path.name for path in out.iterdir()) == [".lock", "2", "3"]


@settings(max_examples=25)
@given(is_item=st.lists(st.booleans(), max_size=40), shard_rows=st.integers(1, 50))
def test_shards_of_any_size_hold_the_same_items(tmp_path_factory, is_item, shard_rows):
    folder = tmp_path_factory.mktemp("any")
    ids = [f"i{n}" if there else None for n, there in enumerate(is_item)]
    bundle = make_bundle(folder / "bundle", ids)
    published = publish_vectors(bundle, folder / "out", shard_rows=shard_rows)
    names = [id_ for id_ in ids if id_]
    vectors = np.load(bundle / "item_embeddings.npy")[1:][np.array(is_item, bool)]
    rows = read(published.folder / "items")
    assert [row["id"] for row in rows] == names
    found = np.array([row["embedding"] for row in rows], np.float32).reshape(-1, DIM)
    np.testing.assert_array_equal(found, vectors)
    sizes = [pq.read_metadata(path).num_rows for path in (published.folder / "items").iterdir()]
    assert max(sizes, default=0) <= shard_rows
    shutil.rmtree(folder)


def test_milvus_finds_the_exact_best_and_forgets_what_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    ids = [f"i{n}" for n in range(400)]
    bundle = make_bundle(tmp_path / "first", ids, bias=True)
    publish_vectors(bundle, "vectors", shard_rows=150)
    block = example_of("Milvus")

    def load():
        names: dict[str, Any] = {}
        exec(block, names)  # noqa: S102  As a reader does.
        return names["client"]

    client = load()

    def check(vectors, names, **options):
        query = np.concatenate([rng.normal(size=(20, DIM - 1)), np.ones((20, 1))], axis=1)
        query = query.astype(np.float32)
        best = np.argsort(-(query @ vectors.T), axis=1)[:, :10]
        hits = client.search("items", query.tolist(), limit=10, **options)
        assert [[hit["id"] for hit in row] for row in hits] == [
            [names[place] for place in places] for places in best
        ]

    vectors = np.load(bundle / "item_embeddings.npy")[1:]
    check(vectors, ids)
    lines = pq.read_table(bundle / "catalogue" / "items.parquet").to_pylist()
    wanted = [n for n, x in enumerate(lines) if "Drama" in x["genres"] and x["year"] == ["2001"]]
    filter_ = 'array_contains(genres, "Drama") and array_contains(year, "2001")'
    check(vectors[wanted], [ids[n] for n in wanted], filter=filter_)

    later = make_bundle(
        tmp_path / "later", ids[100:], vectors=np.vstack([vectors[:1], vectors[100:]])
    )
    client.close()
    publish_vectors(later, "vectors")
    client = load()
    check(vectors[100:], ids[100:])
    client.close()


def test_the_example_for_vertex_writes_records_restricts_and_deletions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    publish_vectors(make_bundle(tmp_path / "first", ["gone", "a"]), "vectors")
    bundle = make_bundle(tmp_path / "second", ["a", '"b\\', "ü"])
    publish_vectors(bundle, "vectors")
    exec(example_of("Vertex AI"), {})  # noqa: S102  As a reader does.
    lines = (tmp_path / "vertex/2/part-00000.json").read_text().splitlines()
    vectors = np.load(bundle / "item_embeddings.npy")
    items = pq.read_table(bundle / "catalogue" / "items.parquet").to_pylist()
    for row, (line, item) in enumerate(zip(lines, items, strict=True), 1):
        record = json.loads(line)
        assert record["id"] == item["id"]
        np.testing.assert_array_equal(np.array(record["embedding"], np.float32), vectors[row])
        allowed = [{"namespace": "genres", "allow": item["genres"]}] if item["genres"] else []
        assert record["restricts"] == allowed
    assert (tmp_path / "vertex/2/delete/deleted.txt").read_text() == "gone\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"shard_rows": 0}, "R596"),
        ({"keep": 0}, "R596"),
        ({"columns": ["hashed"]}, "R593"),
        ({"columns": ["genres:list"]}, "R593"),
    ],
)
def test_an_invalid_publication_is_refused(tmp_path, options, code):
    bundle = make_bundle(tmp_path / "bundle", ["a", "b"])
    assert code_of(lambda: publish_vectors(bundle, tmp_path / "out", **options)) == code
    left = [path.name for path in (tmp_path / "out").glob("*")]
    assert [name for name in left if name != ".lock"] == []


def test_a_damaged_model_or_publication_is_a_sentence(tmp_path):
    out = tmp_path / "out"
    assert code_of(lambda: publish_vectors(tmp_path, out)) == "R590"
    bundle = make_bundle(tmp_path / "bundle", ["a", "b"])
    publish_vectors(bundle, out)
    with (bundle / "item_embeddings.npy").open("r+b") as file:
        file.truncate(100)
    assert code_of(lambda: publish_vectors(bundle, out)) == "R502"
    vectors = np.full((3, DIM), np.nan, np.float32)
    wrong = make_bundle(tmp_path / "nan", ["a", "b"], vectors=vectors)
    assert code_of(lambda: publish_vectors(wrong, out)) == "R591"
    short = make_bundle(tmp_path / "short", ["a", "b"], vectors=vectors[:2])
    assert code_of(lambda: publish_vectors(short, out)) == "R591"
    whole = make_bundle(tmp_path / "whole", ["a", "b"])
    (out / "1" / "items" / "part-00000.parquet").write_bytes(b"")
    assert code_of(lambda: publish_vectors(whole, out)) == "R595"
    assert sorted(path.name for path in out.iterdir()) == [".lock", "1"]


_PUBLISH = """
import resource, signal, sys
if sys.argv[3:]:  # No file may become larger.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
from recsys.vectors import VectorPublication, publish_vectors
publish_vectors(sys.argv[1], sys.argv[2], shard_rows=1000)
"""


def _start(*arguments):
    words = [sys.executable, "-c", _PUBLISH, *map(str, arguments)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def test_a_killed_publication_leaves_the_last_one_and_the_next_sweeps(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", [f"i{n}" for n in range(40_000)])
    out = tmp_path / "out"
    small = make_bundle(tmp_path / "small", ["a"])
    publish_vectors(small, out)
    killed = _start(bundle, out)
    while not list(out.glob(".partial-2/items/part-00003.parquet")):
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.001)
    killed.kill()
    killed.communicate()
    assert (out / ".partial-2").exists()
    manifests.verify_folder(out / "1" / "manifest.json")
    assert publish_vectors(small, out).folder.name == "2"
    assert sorted(path.name for path in out.iterdir()) == [".lock", "1", "2"]


def test_a_full_disk_is_a_sentence_and_leaves_the_last_publication(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", [f"i{n}" for n in range(4000)])
    out = tmp_path / "out"
    publish_vectors(make_bundle(tmp_path / "small", ["a"]), out)
    _, said = (stopped := _start(bundle, out, 20_000)).communicate()
    assert stopped.returncode == 1
    assert "[R592]" in said.splitlines()[-1]
    assert "the last publication is untouched" in said
    assert sorted(path.name for path in out.iterdir()) == [".lock", "1"]


@pytest.mark.parametrize("out", ["file", "file/inside"])
def test_a_file_in_place_of_the_folder_is_named(tmp_path, out):
    (tmp_path / "file").write_text("mine")
    bundle = make_bundle(tmp_path / "bundle", ["a"])
    with pytest.raises(UsageError, match=r"R592.*into a folder.*file.* --out DIR") as raised:
        publish_vectors(bundle, tmp_path / out)
    assert "disk space" not in str(raised.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_the_command_publishes_the_served_version(tmp_path, capsys):
    served = tmp_path / "run" / "serving" / "tiny"
    for version in ("1", "2"):
        make_bundle(served / version, ["a", version])
    out = tmp_path / "out"
    words = ["publish-vectors", "--root", str(tmp_path / "run"), "--out", str(out), "--json"]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--columns", ""])
    result = json.loads(capsys.readouterr().out)
    assert result["model"] == str(served / "2")
    assert result["items"] == 2
    assert [list(row) for row in read(Path(result["folder"], "items"))] == [["id", "embedding"]] * 2
    with pytest.raises(SystemExit, match="0"):
        main(["publish-vectors", str(served / "1"), "--out", str(out)])
    said = " ".join(capsys.readouterr().out.split())
    assert "deleted 1" in said
