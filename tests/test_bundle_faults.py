"""Bundles that are damaged, or made in bad faith: refused with a sentence, whatever they hold."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent / "test_bundle_scripts"))
import mutations

from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import publish
from recsys.errors import RecsysError
from recsys.serving.recommendations import load_bundle

_SCRIPT = Path(mutations.__file__)


def make_bundle(folder: Path) -> Path:
    """Writes what a bundle holds beside a SavedModel, and stand-ins for that."""
    for name in ("variables", "vocabulary"):
        (folder / name).mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(bytes(range(256)) * 8)
    (folder / "variables" / "variables.index").write_bytes(bytes(300))
    pq.write_table(pa.table({"id": ["a", "b"], "title": ["A", "B"]}), folder / "titles.parquet")
    pq.write_table(pa.table({"id": ["u", "v"]}), folder / "vocabulary" / "users.parquet")
    bundles.write_manifest(folder, {"k": 2, "name": "tiny", "config": {}})
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("whole") / "bundle")


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_no_damage_brings_more_than_a_sentence(tmp_path_factory, whole, seed):
    folder = tmp_path_factory.mktemp("mutated")
    bundle = shutil.copytree(whole, folder / "bundle")
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_text("secret")
    publish(whole, folder / "serving", keep=2)
    mutations.mutate(bundle, seed)
    mutations.try_one(bundle, folder / "serving")
    assert mutations.code_of(lambda: load_bundle(bundle)) != "ok"  # There is no SavedModel.
    assert (folder / "outside" / "secret").read_text() == "secret"
    assert len(list((folder / "outside").iterdir())) == 1
    shutil.rmtree(folder)


@pytest.mark.parametrize("way", mutations.MUTATIONS, ids=lambda way: way.__name__)
def test_every_way_does_damage(tmp_path, whole, way):
    codes = set()
    for seed in range(20):
        bundle = shutil.copytree(whole, tmp_path / f"b{seed}")
        try:
            way(bundle, mutations.random.Random(seed))
        except RecsysError:
            continue
        codes.add(mutations.code_of(lambda b=bundle: mutations.read_contents(b)))
    assert codes - {"ok"}


def run_script(n: int, seed: str, bundle: Path, folder: Path) -> dict[str, Any]:
    said = subprocess.run(
        [sys.executable, _SCRIPT, str(n), seed, bundle, folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    assert found["outside"] == []  # Nothing but the folders was opened.
    assert found["slowest_s"] < 10
    assert len(found["ways"]) == len(mutations.MUTATIONS)
    assert any(name.startswith("publish R") for name in found["codes"])
    assert found["codes"]["as a version, rollback R517"] > 0
    assert found["codes"]["as a version, rollback ok"] > 0


@pytest.mark.slow
def test_no_file_outside_is_opened(tmp_path, whole):
    check(run_script(100, "few", whole, tmp_path))


@pytest.mark.faults
@pytest.mark.slow
def test_ten_thousand_damaged_bundles(tmp_path, whole):
    found = run_script(10_000, "many", whole, tmp_path)
    check(found)
    assert found["tried"] == 10_000
