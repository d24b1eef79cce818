"""`recsys forget` and `data.forget`: a person leaves everything that runs have written."""

import base64
import contextlib
import gzip
import io
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import yaml
from golden_runs import SMALL, recsys
from on_tensorflow import run_on_tensorflow
from places import SUPPORT
from s3_server import s3, s3_address

from recsys.bundles.bundle import read_manifest, verify
from recsys.bundles.publishing import VersionRegistry, versions
from recsys.cli import main
from recsys.config import (
    DataConfig,
    GateConfig,
    InteractionColumns,
    InteractionsConfig,
    UserColumns,
    UsersConfig,
)
from recsys.data.features import CategoryFeature
from recsys.data.forgotten import Forgotten
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.forget.files import GONE, Names, fresh, recover, replacing
from recsys.storage.bucket import Bucket
from recsys.storage.working_folder import fetched, local_folder, written
from recsys.tasks.model_folder import load_model

__all__ = ["s3", "s3_address"]

PERSON = "late0"  # Knows no row of its own in the shared world; its events are held out.
OTHER = "u5"


# --- what reads every file


def decoded(path):
    """Yields the content of a file in every form that may hide a text."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        yield repr(table.to_pylist()).encode() + repr(table.schema.metadata).encode()
    elif path.suffix == ".arrow":
        yield repr(pa.ipc.open_file(path).read_all().to_pylist()).encode()
    elif path.suffix in (".npy", ".npz"):
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        arrays = [loaded] if path.suffix == ".npy" else loaded.values()
        yield b"\n".join(repr(a.tolist()).encode() for a in arrays if a.dtype.kind in "US")
    elif path.suffix == ".gz":
        yield gzip.decompress(content)
    elif content.startswith(b"SQLite format 3"):
        with sqlite3.connect(f"file:{path}?immutable=1", uri=True) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'"):
                rows = database.execute(f'SELECT * FROM "{table}"')  # noqa: S608 its own names
                yield repr(rows.fetchall()).encode()
    for coded in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", content):
        yield base64.b64decode(coded[: len(coded) // 4 * 4])


def files_with(root, id_):
    """Returns the files below a root, or their names, that hold an id."""
    return [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*"))
        if id_ in path.name
        or (path.is_file() and any(id_.encode() in content for content in decoded(path)))
    ]


# --- the ingest


def write_raw(folder):
    start = 1_700_006_400
    rows = [f"person-{n % 4},i{n % 5},{start + n * 43_200}" for n in range(40)]
    bad = ["person-1,,1700006400", "person-1,i1", "person-2,,1700006400", "person-1,i2,soon"]
    (folder / "events.csv").write_text("\n".join(["user,item,time", *rows, *bad]) + "\n")
    users = [f"person-{n},{'ab'[n % 2]}" for n in range(4)]
    (folder / "users.csv").write_text("\n".join(["user,group", *users]) + "\n")


def data_config(folder, **more):
    columns = InteractionColumns(user="user", item="item", timestamp="time")
    features = (CategoryFeature(name="group", column="group"),)
    return DataConfig(
        interactions=InteractionsConfig(files=str(folder / "events.csv"), columns=columns),
        users=UsersConfig(
            files=str(folder / "users.csv"), columns=UserColumns(user="user"), features=features
        ),
        eval_share=0.25,
        gate=GateConfig(max_rejected_share=0.5),
        **more,
    )


@pytest.mark.pipeline
def test_an_ingest_leaves_out_forgotten_users_and_counts_their_rows(tmp_path):
    from recsys.stages.ingest import ingest

    write_raw(tmp_path)
    forgotten = tmp_path / "forgotten.txt"
    Forgotten.new().with_users(["person-1"]).save(forgotten)
    data = ingest(data_config(tmp_path, forget=str(forgotten)), tmp_path / "out", progress=False)
    # Its ten events, and its three bad rows, of which one has too few cells.
    facts = json.loads((tmp_path / "out" / "dead_letters/interactions/summary.json").read_text())
    counts = [facts[name] for name in ("read", "good", "rejected", "duplicates", "forgotten")]
    assert counts == [44, 30, 1, 0, 13]
    assert data.counts["users"] == 3
    assert not files_with(tmp_path / "out", "person-1")
    assert files_with(tmp_path / "out", "person-2")


def test_the_file_names_nobody_and_is_missed_if_it_is_gone(tmp_path):
    path = tmp_path / "forgotten.txt"
    listed = Forgotten.new().with_users(["ann@example.org", "7"])
    listed.save(path)
    assert "ann" not in path.read_text()
    assert Forgotten.load(path) == listed
    assert listed.contains(pa.array(["7", None, "70", "ann@example.org"])).tolist() == [
        *(True, False, False, True)
    ]
    assert Forgotten.new().with_users(["7"]).hashes.isdisjoint(listed.hashes)
    assert listed.with_users(["8"]).digest() != listed.digest()
    path.write_text(path.read_text() + "ann@example.org\n")
    with pytest.raises(RecsysError, match="R931"):
        Forgotten.load(path)
    with pytest.raises(RecsysError, match="R931"):
        Forgotten.load(tmp_path / "none.txt")


@pytest.mark.pipeline
def test_forget_needs_its_file_and_records_those_of_whom_nothing_is_there(tmp_path, capsys):
    pytest.importorskip("ml_metadata", reason="needs the extra `pipeline`")
    from metadata_nights import config_of

    from pipelines.forget import forget as remove

    config = config_of(tmp_path / "root")
    with pytest.raises(RecsysError, match="R930"):
        remove(config, ["somebody"])
    path = tmp_path / "new" / "forgotten.txt"
    data = {**config.data.model_dump(mode="json", exclude_defaults=True), "forget": str(path)}
    for id_ in ("somebody", "somebody else"):
        done = remove(config_of(tmp_path / "root", data=data), [id_])
        assert (done["found"], done["failed"]) == (False, [])
    listed = Forgotten.load(path).contains(pa.array(["somebody", "somebody else", "nobody"]))
    assert listed.tolist() == [True, True, False]
    with pytest.raises(SystemExit, match="2"):
        main(["forget", "  "])
    assert "R934" in capsys.readouterr().err


# --- texts


def test_a_short_id_goes_where_a_field_is_a_user_only():
    names = Names(["7"])
    evaluation = {
        "examples": [{"user_id": "7", "history": []}, {"user_id": "8", "history": [{"id": "7"}]}]
    }
    assert names.without_json(evaluation) == {"examples": evaluation["examples"][1:]}
    columns = [
        {"name": "user_id", "top": [["7", 0.2], ["8", 0.1]]},
        {"name": "item_id", "top": [["7", 0.2]]},
    ]
    assert names.without_json(columns) == [{**columns[0], "top": [["8", 0.1]]}, columns[1]]
    growth = {"users": {"new": 2, "examples": {"new": ["7", "9"]}}, "items": {"examples": ["7"]}}
    assert names.without_json(growth)["users"]["examples"] == {"new": ["9"]}
    assert names.without_json(growth)["items"] == growth["items"]
    letters = [{"line": 7, "row": "7,,12"}, {"line": 8, "row": "77,,7.5"}]
    assert names.without_json({"examples": {"empty item id": letters}}) == {
        "examples": {"empty item id": letters[1:]}
    }
    assert names.without_words("7 of 7 steps") == "7 of 7 steps"


def test_a_report_loses_the_examples_of_a_user():
    article = '<article class="person">\n  <h3>User {} <span>no hit</span></h3>x</article>\n'
    letter = '<p class="letter"><span>e.csv, line 2</span> <code>{},,12</code></p>\n'
    page = "".join(part.format(id_) for part in (article, letter) for id_ in ("7", "a&amp;b", "8"))
    table = '<tr>\n  <th scope="row">user_id</th>\n  <td>9 distinct: 7 (2 %), 8 (1 %)</td></tr>'
    left = Names(["7", "a&b"]).without_html(page + table)
    assert left == article.format("8") + letter.format("8") + table.replace("7 (", f"{GONE} (")


# --- folders


def test_a_replaced_folder_is_the_old_one_or_the_new_one(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "b").write_text("same")
    with pytest.raises(FileNotFoundError), replacing(folder) as copy:
        fresh(copy / "a").write_text((copy / "none").read_text())
    assert (folder / "a").read_text() == "old"
    with replacing(folder) as copy:
        fresh(copy / "a").write_text("new")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "new", "b": "same"}
    assert [path.name for path in tmp_path.iterdir()] == ["7"]
    # Killed between the two renames, before the first one, and after the second one.
    folder.rename(tmp_path / ".forget-old-7")
    shutil.copytree(tmp_path / ".forget-old-7", tmp_path / ".forget-new-7")
    (tmp_path / ".forget-new-7" / "a").write_text("newer")
    recover(tmp_path)
    assert (folder / "a").read_text() == "newer"
    shutil.copytree(folder, tmp_path / ".forget-old-7")
    shutil.copytree(folder, tmp_path / ".forget-new-8")
    recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_those_who_stay_in_a_saved_model_keep_number_history_and_row(tmp_path):
    script = SUPPORT / "stored_users.py"
    run_on_tensorflow(script, tmp_path)  # It raises an AssertionError.


def test_a_version_that_answers_others_differently_is_refused(tmp_path, exported_world):
    shutil.copytree(exported_world.bundle, tmp_path / "bundle")
    run_on_tensorflow(SUPPORT / "wrong_row.py", tmp_path)


# --- a root


@pytest.fixture(scope="module")
def root(tmp_path_factory, exported_world):
    """A root whose users are forgotten."""
    return make_root(tmp_path_factory.mktemp("forget"), exported_world)


def make_root(folder, world, root=None, url=None):
    """Writes a root as runs leave it, of a small model, and its config into `folder`."""
    root = root or folder / "root"
    artifacts = root / "artifacts"
    shutil.copytree(world.model, artifacts / "Trainer/model/3")
    vocabularies = artifacts / "VocabularyGen/vocabularies/2"
    shutil.copytree(world.data / "vocabulary", vocabularies)
    (vocabularies / "diff.json").write_text(json.dumps({"users": {"examples": {"new": [OTHER]}}}))
    shutil.copytree(world.data, artifacts / "InteractionEncoder/data/4")
    letters = artifacts / "InteractionGen/dead_letters/1"
    (letters / "dead_letters").mkdir(parents=True)
    row = {"reason": ["no item"], "file": ["e"], "line": [1], "row": [f"{PERSON},,3"]}
    pq.write_table(pa.table(row), letters / "dead_letters" / "letters.parquet")
    examples = [{"user_id": PERSON, "history": [{"id": "i1"}]}, {"user_id": "u9", "history": []}]
    texts = {
        "artifacts/RetrievalEvaluator/evaluation/5/evaluation.json": {"examples": examples},
        "runs/r1/run.json": {"error": f"user '{PERSON}' is none"},
        "segments/seen.json": {"1": 2},
        "checkpoints/0123456789abcdef/last/1/contents.json": {"user": PERSON},
        "tuning/study/trials/0001/last/contents.json": {"user": PERSON},
    }
    for name, content in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(content))
    (root / "logs").mkdir()
    (root / "logs" / "one.log").write_text(f"{PERSON} and u9 were read\n")
    landed = root / "landed" / "interactions"
    (landed / "clicks" / "00000000").mkdir(parents=True)
    lines = [json.dumps({"u": id_, "i": "i1", "t": 1}) for id_ in ("u9", PERSON, "u8")]
    (landed / "clicks" / "00000000" / "clicks-0-0.jsonl").write_text("\n".join(lines))
    rows = {"u": ["u9", PERSON], "i": ["i1", "i2"], "t": [1, 2]}
    pq.write_table(pa.table(rows), landed / "rows.parquet")
    (landed / "landed.json").write_text(json.dumps({"rows": 2}))
    segment = root / "segments" / "segment-1" / "00000"
    segment.mkdir(parents=True)
    pq.write_table(pa.table({"id": [PERSON]}), segment / "users.parquet")
    (artifacts / "Reporter/report/6").mkdir(parents=True)
    (artifacts / "Reporter/report/6/report.html").write_text(
        f'<article class="person"><h3>User {PERSON} <span>1 hit</span></h3></article> kept {PERSON}'
    )
    for version in (1, 2):
        shutil.copytree(world.bundle, root / "serving" / "tiny" / str(version))
    shutil.copytree(world.bundle, root / "serving" / "tiny" / ".withdrawn-3")
    with sqlite3.connect(root / "tuning/study/study.db") as database:
        database.execute("CREATE TABLE attributes (id INTEGER PRIMARY KEY, value TEXT)")
        rows = [(f"failed at {PERSON}",), ("3",), (None,)]
        database.executemany("INSERT INTO attributes (value) VALUES (?)", rows)
    database.close()
    _write_metadata(root)
    columns = {"user": "u", "item": "i", "timestamp": "t"}
    data = {"interactions": {"files": "e.csv", "columns": columns}, "forget": "forgotten.txt"}
    config = {"name": "tiny", "root": url or "root", "data": data}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return root


def _write_metadata(root):
    pytest.importorskip("ml_metadata", reason="needs the extra `pipeline`")
    from metadata_nights import Store

    store = Store(root)
    pushed = {"pushed_destination": str(root / "serving/tiny/2"), "current_model_id": 3}
    made = {"pushed": ("PushedModel", pushed)}
    store.execute("Pusher", "r1", made=made, parameters={"note": f"asked for {PERSON}"})
    made = {"data": ("InteractionData", {})}
    _, ids = store.execute("Encoder", "r1", made=made)
    (artifact,) = store.store.get_artifacts_by_id([ids["data"]])
    shutil.rmtree(artifact.uri)
    artifact.uri = str(root / "artifacts/InteractionEncoder/data/4")
    store.store.put_artifacts([artifact])


def forget(folder, *words, check=True):
    command = [sys.executable, "-m", "recsys", "forget", "--config", "config.yaml", "--json"]
    run = subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert not check or run.returncode == 0, run.stdout + run.stderr[-4000:]
    return json.loads(run.stdout) if run.returncode == 0 else run.stderr


@pytest.fixture(scope="module")
def forgotten(root):
    """The output of `recsys forget` for two users, one on the command line and one in a file."""
    assert len(files_with(root, PERSON)) == 13
    (root.parent / "people.txt").write_text(f" {OTHER} \n\n")
    return forget(root.parent, PERSON, "--file", "people.txt")


@pytest.mark.pipeline
@pytest.mark.slow
def test_a_forgotten_user_is_in_no_file_under_the_root(root, forgotten):
    assert files_with(root, PERSON) == []
    assert forgotten["found"]
    assert (forgotten["models"], forgotten["vocabularies"], forgotten["versions"]) == (1, 1, 3)
    assert not (root / "artifacts/InteractionEncoder/data/4").exists()
    assert (root / "segments/seen.json").exists()
    with contextlib.closing(sqlite3.connect(root / "tuning/study/study.db")) as database:
        values = database.execute("SELECT value FROM attributes").fetchall()
    assert values == [(f"failed at {GONE}",), ("3",), (None,)]
    assert (root / "logs/one.log").read_text() == f"{GONE} and u9 were read\n"
    (night,) = root.glob("landed/interactions/clicks/*/*.jsonl")
    assert [line[:9] for line in night.read_text().split("\n")] == ['{"u": "u9', "", '{"u": "u8']
    assert pq.read_table(root / "landed/interactions/rows.parquet")["u"].to_pylist() == ["u9"]
    assert json.loads((root / "landed/interactions/landed.json").read_text()) == {"rows": 1}


@pytest.mark.pipeline
@pytest.mark.slow
def test_a_forgotten_user_is_in_no_object_of_a_bucket(s3, tmp_path, monkeypatch, exported_world):
    from pipelines import commands

    monkeypatch.setenv("RECSYS_CACHE", str(tmp_path / "cache"))
    bucket, root = Bucket(f"{s3}/runs"), local_folder(f"{s3}/runs")
    with written(root):
        make_root(tmp_path, exported_world, root, bucket.url)
    shutil.rmtree(tmp_path / "cache")  # Another machine.
    (tmp_path / "people.json").write_text(json.dumps([PERSON]))
    words = ["--config", tmp_path / "config.yaml", "--users", tmp_path / "people.json"]
    assert commands.main(["forget", *map(str, words)])["landed"] == 2
    shutil.rmtree(tmp_path / "cache")
    assert files_with(fetched(local_folder(bucket.url)), PERSON) == []
    kept = json.loads(bucket.read(".recsys/manifest.json")[0])["files"]
    digests = {digest for digest, *_ in kept.values()}
    objects = {entry.key.removeprefix(".recsys/objects/") for entry in bucket.list()}
    served = {path for path in kept if re.match(r"serving/tiny/\d", path)}
    assert objects <= digests | served | {".recsys/manifest.json"}
    contents = [b"".join(bucket.stream(entry.key)) for entry in bucket.list()]
    assert not [content for content in contents if PERSON.encode() in content]


@pytest.mark.pipeline
@pytest.mark.slow
def test_the_rows_of_others_stay_and_the_freed_row_is_empty(root, forgotten, exported_world):
    del forgotten
    before = Vocabulary.load(exported_world.model / "vocabulary" / "users.parquet")
    row = int(before.rows([OTHER])[0])
    expected = before.names_of_rows()
    assert expected[row] == OTHER
    expected[row] = ""
    model = root / "artifacts/Trainer/model/3"
    folders = [root / "artifacts/VocabularyGen/vocabularies/2", model / "vocabulary"]
    folders += [path / "vocabulary" for path in versions(root / "serving/tiny")]
    for folder in folders:
        assert Vocabulary.load(folder / "users.parquet").names_of_rows() == expected
    # The checksums are right, and only one row of the weights has changed.
    now, then = (load_model(folder).model for folder in (model, exported_world.model))
    users, users_then = (np.asarray(m.weights[0].value) for m in (now, then))
    assert now.weights[0].path.endswith("users/embeddings")
    assert users_then[row].any()
    assert not users[row].any()
    others = np.arange(len(users)) != row
    np.testing.assert_array_equal(users[others], users_then[others])
    assert not load_model(model).inputs.user_features[0].bags[row].any()


@pytest.mark.pipeline
@pytest.mark.slow
def test_a_version_without_the_user_replaces_the_served_one(root, forgotten):
    serving = root / "serving" / "tiny"
    assert forgotten["version"] == str(serving / "4")
    assert [path.name for path in versions(serving)] == ["1", "4"]
    for path in [*versions(serving), serving / ".withdrawn-3"]:
        verify(path)
        assert read_manifest(path)["counts"]["users"] == 43
    assert list(VersionRegistry.open(serving).withdrawn) == [3]
    from metadata_nights import Store
    from ml_metadata.proto import metadata_store_pb2 as proto

    kinds = {artifact.type: artifact for artifact in Store(root).store.get_artifacts()}
    destination = kinds["PushedModel"].custom_properties["pushed_destination"].string_value
    assert destination == forgotten["version"]
    assert kinds["InteractionData"].state == proto.Artifact.DELETED


@pytest.mark.faults
@pytest.mark.pipeline
def test_a_damaged_version_is_named_and_all_else_is_changed(tmp_path, exported_world):
    root = make_root(tmp_path, exported_world)
    damaged = root / "serving" / "tiny" / "1"
    (damaged / "saved_model.pb").write_bytes(b"")
    run = subprocess.run(
        [sys.executable, "-m", "recsys", "forget", "--config", "config.yaml", "--json", PERSON],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stderr[-4000:]
    done = json.loads(run.stdout)
    [(path, why)] = done["failed"]
    assert path == str(damaged)
    assert "saved_model.pb" in why
    assert done["version"] == str(root / "serving/tiny/4")
    left = files_with(root, PERSON)
    assert [path for path in left if not path.startswith("serving/tiny/1/")] == []


@pytest.mark.faults
@pytest.mark.pipeline
def test_a_forget_that_is_killed_is_completed_by_the_same_command(tmp_path, exported_world):
    root = make_root(tmp_path, exported_world)
    serving = root / "serving" / "tiny"
    moments = [
        lambda: (serving / "4").exists(),
        lambda: any((root / "artifacts/Trainer/model").glob(".forget-*")),
        lambda: (root / ".gone").exists(),
    ]
    command = [sys.executable, "-m", "recsys", "forget", "--config", "config.yaml", PERSON, OTHER]
    for has_come in moments:
        process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
        while process.poll() is None and not has_come():
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        listed = Forgotten.load(tmp_path / "forgotten.txt")
        assert listed.contains(pa.array([PERSON, OTHER])).all()
        for path in versions(serving):  # What can be served is whole.
            verify(path)
    forget(tmp_path, PERSON, OTHER)
    assert files_with(root, PERSON) == []
    assert not list(root.rglob(".forget-*"))
    assert [path.name for path in versions(serving)] == ["1", "4"]
    model = load_model(root / "artifacts/Trainer/model/3")
    assert OTHER not in model.users.names_of_rows()
    records = json.loads((root / "forget.json").read_text())["removals"]
    assert records[-1]["finished"] is not None


# --- a whole run


def write_run(folder):
    """Writes a fortnight of clicks, with rows that are bad, users and items, and the config."""
    chance = random.Random(5)
    people, start = [f"person-{n:03}" for n in range(70)], 1_709_251_200
    for day in range(14):
        rows = []
        for _ in range(200):
            user = chance.randrange(65)
            moment = start + day * 86_400 + chance.randrange(86_400)
            rows.append(f"{people[user]},item-{chance.randrange(30) * 2 + user % 2},{moment}")
        bad = [f"{people[3]},,{start}", f"{people[7]},item-1,soon", f"{people[3]},item-1"]
        name = f"clicks-2024-03-{day + 1:02}.csv"
        (folder / name).write_text("\n".join(["user,item,at", *rows, *bad]) + "\n")
    users = [f"{id_},{'abc'[n % 3]}" for n, id_ in enumerate(people)]
    (folder / "users.csv").write_text("\n".join(["user,group", *users, f"{people[3]},a"]) + "\n")
    columns = {"user": "user", "item": "item", "timestamp": "at"}
    features = [{"name": "group", "column": "group", "kind": "category"}]
    data = {
        "interactions": {"files": "clicks-{YYYY}-{MM}-{DD}.csv", "columns": columns},
        "users": {"files": "users.csv", "columns": {"user": "user"}, "features": features},
        "eval_share": 0.2,
        "gate": {"max_rejected_share": 0.2},
    }
    config = {**SMALL, "name": "people", "root": "root", "warm_start": {}, "data": data}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return {**config, "data": {**data, "forget": "forgotten.txt"}}


@pytest.mark.thorough
@pytest.mark.pipeline
def test_a_person_leaves_a_whole_run_and_does_not_come_back_with_the_next(tmp_path):
    config = write_run(tmp_path)
    recsys("run", "config.yaml", cwd=tmp_path)
    evaluation = next(tmp_path.glob("root/artifacts/*/evaluation/*/evaluation.json"))
    shown = json.loads(evaluation.read_text())["examples"][0]["user_id"]
    gone = ["person-003", "person-069", shown]
    assert all(len(files_with(tmp_path / "root", id_)) > 10 for id_ in gone)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    forget(tmp_path, *gone)
    assert [files_with(tmp_path / "root", id_) for id_ in gone] == [[], [], []]
    recsys("run", "config.yaml", cwd=tmp_path)
    assert [files_with(tmp_path / "root", id_) for id_ in gone] == [[], [], []]
    assert [path.name for path in versions(tmp_path / "root/serving/people")] == ["2", "3"]
    *_, model = sorted((tmp_path / "root/artifacts/Trainer/model").iterdir(), key=os.path.getmtime)
    carried = json.loads((model / "training.json").read_text())["warm_start"]["carried"]["users"]
    assert (carried["kept"], carried["dropped"], carried["rows"]) == (67, 0, 71)
