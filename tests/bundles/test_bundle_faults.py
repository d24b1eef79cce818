"""Bundles that are damaged by accident are refused with a sentence, and never published."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import publish, versions
from recsys.errors import RecsysError

Damage = Callable[[Path, random.Random], object]


def files_of(bundle: Path) -> list[Path]:
    return sorted(path for path in bundle.rglob("*") if path.is_file())


def flip_bits(bundle: Path, rng: random.Random) -> None:
    path = rng.choice(files_of(bundle))
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 8])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(bundle: Path, rng: random.Random) -> None:
    path = rng.choice(files_of(bundle))
    os.truncate(path, rng.randrange(path.stat().st_size))


def remove(bundle: Path, rng: random.Random) -> None:
    rng.choice(files_of(bundle)).unlink()


def add(bundle: Path, rng: random.Random) -> None:
    path = bundle / rng.choice(["x", ".x", "a/b/c", "variables/x", "ü", "\udcff", "a\nb"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(rng.randbytes(5))


def swap(bundle: Path, rng: random.Random) -> None:
    a, b = rng.sample(files_of(bundle), 2)
    content = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(content)


DAMAGES: list[Damage] = [flip_bits, truncate, remove, add, swap]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    bundle = tmp_path_factory.mktemp("whole") / "bundle"
    (bundle / "variables").mkdir(parents=True)
    (bundle / "saved_model.pb").write_bytes(bytes(range(256)) * 8)
    (bundle / "variables" / "variables.index").write_bytes(bytes(300))
    bundles.write_manifest(bundle, {"k": 2, "name": "tiny", "config": {}})
    return bundle


def code_of(act: Callable[[], object]) -> str:
    try:
        act()
    except RecsysError as error:
        return error.code
    return "ok"


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32), damage=st.sampled_from(DAMAGES))
def test_damage_is_found_and_never_published(tmp_path_factory, whole, seed, damage):
    folder = tmp_path_factory.mktemp("damaged")
    bundle = shutil.copytree(whole, folder / "bundle")
    publish(whole, folder / "serving", keep=2)
    damage(bundle, random.Random(seed))
    # A bit of the manifest's own fields, such as `name`, may change; its files may not.
    is_changed = any(
        (bundle / path.relative_to(whole)).read_bytes() != path.read_bytes()
        for path in files_of(whole)
        if path.name != "manifest.json" and (bundle / path.relative_to(whole)).exists()
    ) or {path.relative_to(bundle) for path in files_of(bundle)} != {
        path.relative_to(whole) for path in files_of(whole)
    }
    code = code_of(lambda: bundles.verify(bundle))
    assert code in ("ok", "R501", "R502", "R503")
    assert code != "ok" or not is_changed
    assert (code_of(lambda: publish(bundle, folder / "serving", keep=2)) == "ok") == (code == "ok")
    for version in versions(folder / "serving"):
        bundles.verify(version)
    shutil.rmtree(folder)
