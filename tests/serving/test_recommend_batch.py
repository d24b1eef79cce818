"""A file of users in, a Parquet file out: every row answered or kept aside, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run_main
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT, SUPPORT

from recsys.bundles.publishing import publish
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.serving.batch_file import ENCODED, SCHEMA, UsersFile, recommend_file
from recsys.serving.served_model import Retriever


class Echo:
    """Knows the users that begin with `u`, and recommends to each an item of its own name."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def recommend(self, users: pa.RecordBatch, k: int) -> pa.RecordBatch:
        ids = users["user_id"].to_pylist()
        self.blocks.append(len(ids))
        columns = [ids, [[f"for {id_}"] * k for id_ in ids], [[0.5] * k for _ in ids]]
        known = [id_.startswith("u") for id_ in ids]
        columns += [known, ["user" if one else "popularity" for one in known]]
        arrays = [pa.array(x, f.type) for x, f in zip(columns, SCHEMA, strict=True)]
        arrays = [x.cast(f.type) for x, f in zip(arrays, ENCODED, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=ENCODED)


def quiet(n_users: int, n_bytes: int) -> None:
    """Ignores the progress."""


def answered_users(file: Path, column: str | None = None, block: int = 4) -> list[str]:
    out = file.with_name("out.parquet")
    recommend_file(Echo().recommend, UsersFile.open(file, column), out, 2, block, quiet)
    table = pq.read_table(out)
    assert table.schema.equals(SCHEMA)
    ids: list[str] = table["user_id"].to_pylist()
    assert table["item_ids"].to_pylist() == [[f"for {id_}"] * 2 for id_ in ids]
    return ids


def as_parquet(file: Path) -> None:
    pq.write_table(pa.table({"id": ["u1", "007", "ü 3"], "x": [1, 2, 3]}), file)


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.csv", "id,x\nu1,1\n007,2\nü 3,3\n", None),
        ("a.csv", "x,id\n1,u1\n2,007\n3,ü 3\n", "id"),
        ("a.csv", "\ufeffid\r\nu1\r\n007\r\nü 3", None),
        ("a.tsv", "id\tx\nu1\t1\n007\t2\nü 3\t3\n", None),
        ("a.csv", 'id;x\n"u1";1\n007;2\nü 3;3\n', None),
        ("a.txt", "u1\n007\n ü 3 \n", None),
        ("a.txt", "id\nu1\n007\nü 3\n", "id"),
        ("a.txt.gz", "u1\n007\nü 3\n", None),
        ("a.jsonl", '{"id": "u1", "x": 1}\n{"id": "007"}\n{"id": "ü 3"}\n', None),
        ("a.jsonl", '{"x": 1, "id": "u1"}\n{"id": "007"}\n{"id": "ü 3"}\n', "id"),
        ("a.parquet", as_parquet, None),
        ("a.parquet", as_parquet, "id"),
        ("a[1].csv", "id\nu1\n007\nü 3\n", None),
    ],
)
def test_a_file_of_any_format_is_read(tmp_path, name, content, column):
    file = tmp_path / name
    if callable(content):
        content(file)
    else:
        data = content.encode()
        file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert answered_users(file, column) == ["u1", "007", "ü 3"]


def test_columns_of_context_are_passed_by_user(tmp_path):
    file, found = tmp_path / "users.csv", []
    file.write_text("id,context_device,x,context_at\nu1,phone,1,5\n,tv,2,6\nu2,,3,\n")

    class Asked(Echo):
        def recommend(self, users: pa.RecordBatch, k: int) -> pa.RecordBatch:
            found.extend(users.to_pylist())
            return super().recommend(users, k)

    recommend_file(Asked().recommend, UsersFile.open(file), tmp_path / "out", 1, 1, quiet)
    assert found == [
        {"user_id": "u1", "context_device": "phone", "context_at": "5"},
        {"user_id": "u2", "context_device": "", "context_at": ""},
    ]


def test_rows_that_are_no_id_are_kept_aside_with_the_reason(tmp_path):
    file, out = tmp_path / "users.csv", tmp_path / "out.parquet"
    rows = [b"u1,1", b",2", b"x\0y,3", b"u" * 1025 + b",4", b"u2,5", b"\xff,6", b"7", b"s,8"]
    file.write_bytes(b"id,x\n" + b"\n".join(rows) + b"\n")
    found = recommend_file(Echo().recommend, UsersFile.open(file), out, 1, 100, quiet)
    assert (found.users, found.unknown, found.rejected) == (3, 1, 5)
    assert found.sources == {"user": 2, "popularity": 1}
    assert found.rejected_file == str(tmp_path / "out.rejected.parquet")
    table = pq.read_table(out)
    assert table["user_id"].to_pylist() == ["u1", "u2", "s"]
    assert table["known"].to_pylist() == [True, True, False]
    kept = pq.read_table(found.rejected_file)
    assert sorted(kept["line"].to_pylist()) == [3, 4, 5, 7, 8]
    reasons = dict(zip(kept["line"].to_pylist(), kept["reason"].to_pylist(), strict=True))
    assert reasons[3] == "empty user id"
    assert reasons[5] == "user id over 1024 bytes, or with a NUL"
    assert kept["row"].to_pylist()[kept["line"].to_pylist().index(3)] == ",2"
    # The next run, with only good rows, removes old rejects.
    file.write_text("id\nu1\n")
    assert (
        recommend_file(Echo().recommend, UsersFile.open(file), out, 1, 100, quiet).rejected_file
        is None
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", "users.csv"]


@given(
    users=st.lists(st.text("uab1", min_size=1, max_size=3), min_size=1, max_size=60),
    block=st.integers(1, 70),
)
def test_every_user_is_answered_once_in_the_order_of_the_file(tmp_path_factory, users, block):
    folder = tmp_path_factory.mktemp("any")
    file, echo, told = folder / "users.txt", Echo(), []
    file.write_text("\n".join(users))
    asked = UsersFile.open(file)
    recommend_file(
        echo.recommend, asked, folder / "out.parquet", 1, block, lambda *x: told.append(x)
    )
    assert pq.read_table(folder / "out.parquet")["user_id"].to_pylist() == users
    assert max(echo.blocks) <= block
    # The row that no line end follows is read alone.
    assert len(echo.blocks) <= -(-len(users) // block) + 1
    assert sum(n for n, _ in told) == len(users)
    assert sum(n for _, n in told) == asked.n_bytes


def folder_in_the_way(file: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize(
    ("make", "column", "code"),
    [
        (lambda file: None, None, "R546"),
        (folder_in_the_way, None, "R546"),
        (os.mkfifo, None, "R546"),
        (lambda file: file.write_text(""), None, "R202"),
        (lambda file: file.write_text("id\n"), None, "R202"),
        (lambda file: file.write_text("id\nu1\n"), "user", "R2"),
        (lambda file: file.write_bytes(bytes(9999)), None, "R204"),
    ],
    ids=["none", "folder", "pipe", "empty", "header-alone", "no-such-column", "binary"],
)
def test_a_file_that_is_none_is_refused_and_nothing_is_written(tmp_path, make, column, code):
    file = tmp_path / "users.csv"
    make(file)
    with pytest.raises(RecsysError, match=code):
        recommend_file(
            Echo().recommend, UsersFile.open(file, column), tmp_path / "o.parquet", 1, 9, quiet
        )
    assert not list(tmp_path.glob("*o.parquet*"))


class Failing(Echo):
    """Fails at the third block."""

    def recommend(self, user_ids: pa.Array, k: int) -> pa.RecordBatch:
        if len(self.blocks) == 2:
            raise KeyboardInterrupt
        return super().recommend(user_ids, k)


def test_a_run_that_is_interrupted_leaves_what_was_there(tmp_path):
    file, out = tmp_path / "users.txt", tmp_path / "out.parquet"
    file.write_text("\n".join(["u1", "", *(f"u{n}" for n in range(50))]))
    out.write_text("of an earlier run")
    with pytest.raises(KeyboardInterrupt):
        recommend_file(Failing().recommend, UsersFile.open(file), out, 1, 10, quiet)
    assert out.read_text() == "of an earlier run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", "users.txt"]


_RUN = """
import sys, time
sys.path[:0] = {folders!r}
from pathlib import Path
from recsys.serving.batch_file import UsersFile
from recsys.serving.batch_file import recommend_file
from test_recommend_batch import Echo, quiet
class Slow(Echo):
    def recommend(self, user_ids, k):
        sys.stdout.write("block\\n")  # In one piece: two threads write.
        sys.stdout.flush()
        time.sleep(0.1)
        return super().recommend(user_ids, k)
folder = Path(sys.argv[1])
asked = UsersFile.open(folder / "users.txt")
recommend_file(Slow().recommend, asked, folder / "out.parquet", 1, 10, quiet)
"""


def test_a_run_that_is_killed_leaves_nothing_half_and_does_not_block_the_next(tmp_path):
    code = _RUN.format(folders=[str(Path(__file__).parent), str(SUPPORT)])
    (tmp_path / "users.txt").write_text("\n".join(f"u{n}" for n in range(2000)))
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(3)] == ["block\n"] * 3
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert not (tmp_path / "out.parquet").exists()
    assert answered_users(tmp_path / "users.txt", block=100) == [f"u{n}" for n in range(2000)]


@pytest.mark.parametrize(
    "words",
    [[], ["--user", "1", "--users", "f"], ["--users", "f"], ["--user", "1", "--out", "o"]],
)
def test_either_a_user_or_a_file_is_requested(words, capsys):
    assert run_main("recommend", *words) == 2
    assert "R548" in capsys.readouterr().err


@pytest.fixture(scope="module")
def served(exported_world, tmp_path_factory):
    """A root with one version of a small model, with rows that unknown users share."""
    root = tmp_path_factory.mktemp("served")
    publish(exported_world.bundle, root / "serving" / "tiny", keep=1)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("block", [pytest.param(7, marks=pytest.mark.thorough), 8192])
def test_the_answers_are_those_of_the_signature_recommend(served, tmp_path, capsys, block):
    users = [*(f"u{n}" for n in range(40)), *(f"late{n}" for n in range(5)),
             *(f"stranger {n}" for n in range(30)), "ü"]  # fmt: skip
    (tmp_path / "users.txt").write_text("\n".join(users))
    out = tmp_path / "out.parquet"
    words = ["--root", served, "--users", tmp_path / "users.txt", "--out", out]
    assert run_main("recommend", *words, "-k", 4, "--batch", block, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["users"], said["unknown"], said["rejected"]) == (76, 31, 0)
    bundle = served / "serving" / "tiny" / "1"
    retriever = Retriever.open(bundle)
    inputs = retriever.query_inputs(users, exclude_seen=True)
    expected = retriever._graph.ask("recommend", inputs)
    sources = [source.decode() for source in expected["source"]]
    table = pq.read_table(out)
    assert table["user_id"].to_pylist() == users
    assert table["known"].to_pylist() == expected["known"].tolist()
    assert table["source"].to_pylist() == sources
    assert set(sources) == {"user", "history", "features", "popularity"}
    ids = [[id_.decode() for id_ in ids[:4] if id_] for ids in expected["candidate_ids"].tolist()]
    assert table["item_ids"].to_pylist() == ids
    for found, scores, kept in zip(
        table["scores"].to_pylist(), expected["scores"], ids, strict=True
    ):
        np.testing.assert_allclose(found, scores[: len(kept)], atol=1e-5)


@pytest.mark.slow
def test_a_stranger_is_answered_by_popularity_and_distinguished(exported_world, served, capsys):
    # In this world shared rows have features, too.
    data = exported_world.data
    users = Vocabulary.load(data / "vocabulary" / "users.parquet")
    plans = np.load(data / "user_features" / "plan.npy")
    names = (f"stranger {n}" for n in range(99))
    stranger = next(name for name in names if not plans[users.rows([name])].any())
    assert run_main("recommend", "--root", served, "--user", stranger, "-k", 3) == 0
    said = capsys.readouterr()
    assert "popularity" in said.out
    assert "'u0', 'u1', 'u2'" in said.err
    assert run_main("recommend", "--root", served, "--user", "u1", "-k", 3) == 0
    said = capsys.readouterr()
    assert "popularity" not in said.out
    assert "stranger" not in said.err


@pytest.mark.slow
def test_more_items_than_the_bundle_gives_are_refused(served, tmp_path, capsys):
    (tmp_path / "users.txt").write_text("u1\n")
    out = tmp_path / "out.parquet"
    words = ["--root", served, "--users", tmp_path / "users.txt", "--out", out]
    assert run_main("recommend", *words, "-k", 6) == 2
    assert "R541" in capsys.readouterr().err
    assert not out.exists()
