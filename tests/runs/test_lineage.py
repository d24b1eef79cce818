"""Lineage: the origin in a manifest, and further fields from ML Metadata."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from commands import run_main

from recsys import __version__
from recsys.bundles.bundle import write_manifest
from recsys.bundles.description import describe_origin, describe_source, model_fingerprint
from recsys.data.vocabulary import Vocabulary
from recsys.fingerprint import source_version
from recsys.system.manifest import manifest_digest

SPANS = [
    {"span": 1, "name": "2026-01-30", "version": 0, "state": "reused", "rows": 9, "rejected": 0},
    {"span": 2, "name": "2026-01-31", "version": 0, "state": "set_aside", "rows": 5, "rejected": 5},
    {"span": 3, "name": "2026-02-01", "version": 1, "state": "read", "rows": 9, "rejected": 1},
]


def letters_of(path: Path, **changes: Any) -> Path:
    path.mkdir(parents=True)
    files = ["/data/eu/2026-01-30.csv", "/data/us/2026-02-01.csv"]
    counts = {"read": 18, "good": 17, "rejected": 1, "duplicates": 0, "cut": 1_770_000_000}
    (path / "summary.json").write_text(json.dumps({"files": files, **counts, **changes}))
    return path


def model_of(path: Path, **training: Any) -> Path:
    (path / "weights").mkdir(parents=True)
    np.save(path / "weights/0.npy", np.ones(3))
    (path / "vocabulary").mkdir()
    for name in ("users", "items"):
        vocabulary = Vocabulary(pa.array(["a", "b"], pa.large_string()), np.array([2, 1]))
        vocabulary.save(path / "vocabulary" / f"{name}.parquet")
    (path / "training.json").write_text(json.dumps(training))
    return path


def test_a_source_is_described_by_its_files_below_their_common_folder(tmp_path):
    letters = letters_of(tmp_path / "letters")
    told = describe_source(letters, "abc")
    assert told == {
        "digest": "abc",
        "files": ["eu/2026-01-30.csv", "us/2026-02-01.csv"],
        "counts": {"read": 18, "good": 17, "rejected": 1, "duplicates": 0, "cut": 1_770_000_000},
    }
    (letters / "spans.json").write_text(json.dumps(SPANS))
    assert [one["state"] for one in describe_source(letters, "")["spans"]] == [
        "reused",
        "set_aside",
        "read",
    ]
    one = letters_of(tmp_path / "one", files=["/data/a/b.csv"])
    assert describe_source(one, "")["files"] == ["b.csv"]
    remote = letters_of(tmp_path / "remote", files=["gs://b/1.csv", "gs://b/2.csv"])
    assert describe_source(remote, "")["files"] == ["gs://b/1.csv", "gs://b/2.csv"]


def test_a_model_has_the_fingerprint_that_a_warm_start_names(tmp_path):
    model = model_of(tmp_path / "model")
    of_weights = model_fingerprint(model)
    assert of_weights == model_fingerprint(model_of(tmp_path / "same"))
    (model / "training_state").mkdir()
    (model / "training_state" / "manifest.json").write_text('{"files": {}}')
    assert model_fingerprint(model) == manifest_digest(model / "training_state" / "manifest.json")
    assert model_fingerprint(model) != of_weights


def test_an_origin_depends_on_no_place_and_no_time(tmp_path):
    evaluation = {"verdict": {"metric": "mrr", "blessed": True, "sentence": "good"}, "users": 3}
    base = {"base": str(tmp_path), "fingerprint": "f00", "warm_starts": 2, "carried": {}}
    told = []
    for place in ("a", "b"):
        one = {"name": "mean", "value": 0.1, "epochs": 6, "seconds": len(told)}
        choice = {"metric": "recall@10", "chosen": "mean", "candidates": [one]}
        training = {"warm_start": {**base, "base": place}, "seconds": len(told), "choice": choice}
        model = model_of(tmp_path / place / "model", **training)
        told.append(describe_origin(model, {**evaluation, "seconds": place}, {"interactions": {}}))
    assert told[0] == told[1]
    assert told[0]["base"] == {"fingerprint": "f00", "warm_starts": 2, "carried": {}}
    assert told[0]["choice"]["candidates"] == [{"name": "mean", "value": 0.1, "epochs": 6}]
    assert told[0]["evaluation"]["sentence"] == "good"
    assert set(told[0]["vocabulary"]) == {"users", "items"}
    cold = describe_origin(model_of(tmp_path / "cold", warm_start=None), None, None)
    assert (cold["base"], cold["evaluation"], cold["data"]) == (None, None, None)
    assert "choice" not in cold


@pytest.fixture
def nights(tmp_path: Path) -> tuple[Any, dict[str, int], dict[str, int]]:
    """A store of two nights, and their ids; the second went on from the first."""
    metadata_nights = pytest.importorskip("metadata_nights", reason="needs the extra `pipeline`")
    store = metadata_nights.Store(tmp_path / "run")
    first = store.night("1")
    return store, first, store.night("2", base=first["model"])


def test_a_bundle_is_known_by_its_place_or_its_manifest(nights, tmp_path):
    from pipelines.commands import find_bundle, trace

    store, _, last = nights
    bundle = store.root / "artifacts" / "Exporter" / "bundle" / str(last["bundle"])
    write_manifest(bundle, {"name": "tiny"})
    copied = tmp_path / "elsewhere"
    copied.mkdir()
    shutil.copy(bundle / "manifest.json", copied)
    for place in (bundle, store.root / "serving" / "tiny" / "2", copied):
        assert find_bundle(store.store, place) == last["bundle"]
    (copied / "manifest.json").write_text("{}")
    assert trace(store.store, copied) is None


def test_the_steps_of_its_night_and_the_models_before_it_are_shown(nights):
    from pipelines.commands import trace

    store, first, last = nights
    shutil.rmtree(store.root / "artifacts" / "Trainer" / "model" / str(last["model"]))
    known = trace(store.store, store.root / "serving" / "tiny" / "2")
    steps = ["InteractionGen", "DataGate", "Trainer", "Exporter"]
    assert (known["name"], [step["step"] for step in known["steps"]]) == ("tiny", steps)
    assert {step["run"] for step in known["steps"]} == {"2"}
    models = [(model["artifact"], model["run"], model["is_there"]) for model in known["models"]]
    assert models == [(last["model"], "2", False), (first["model"], "1", True)]


def test_a_copy_elsewhere_still_tells(tmp_path, capsys):
    told = {
        "format": 1,
        "data": {"interactions": {"digest": "d" * 64, "files": ["a.csv"], "counts": {"read": 9}}},
        "vocabulary": {"users": "u" * 64, "items": "i" * 64},
        "model": "m" * 64,
        "base": {"fingerprint": "b" * 64, "warm_starts": 3, "trained_until": 1_769_904_000},
        "evaluation": {"sentence": "good; blessed"},
    }
    told["data"]["interactions"]["spans"] = SPANS
    write_manifest(tmp_path, {"name": "tiny", "code": "c" * 64, "lineage": told})
    assert run_main("lineage", str(tmp_path)) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("a.csv 9", "d" * 16, "b" * 16, "2026-02-01", "warm starts 3", "good; blessed"):
        assert words in text
    assert run_main("lineage", str(tmp_path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    manifest = (tmp_path / "manifest.json").read_bytes()
    assert found["digest"] == hashlib.sha256(manifest).hexdigest()
    assert (found["lineage"], found["metadata"]) == (told, None)


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *author, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git isn't installed")
    (tmp_path / "recsys").mkdir()
    (tmp_path / "recsys/a.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_the_commit_of_the_code_is_reported_and_whether_sources_differ_from_it(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    clean = source_version(checkout)
    assert (clean["commit"], clean["is_dirty"]) == (commit, False)
    (checkout / "notes.txt").write_text("no source\n")
    assert source_version(checkout) == clean
    (checkout / "recsys/a.py").write_text("2\n")
    assert source_version(checkout) == {**clean, "is_dirty": True}


def test_without_git_or_a_checkout_the_version_is_reported(checkout, tmp_path, monkeypatch):
    (tmp_path / "recsys/inside").mkdir()
    unknown = {"version": __version__, "commit": None, "is_dirty": None}
    # Below somebody else's checkout, which is none of ours.
    assert source_version(tmp_path / "recsys/inside") == unknown
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert source_version(checkout) == unknown


def test_no_bundle_is_an_error(tmp_path, capsys):
    assert run_main("lineage", str(tmp_path)) == 1
    assert "R501" in capsys.readouterr().err
