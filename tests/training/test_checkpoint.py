"""Checkpoints: whole or not there, of this run or refused, and what was saved."""

import contextlib
import gc
import os
import random
import resource
import shutil
import subprocess
import time
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from recsys.embedding.sharding import padded_rows, physical_rows
from recsys.errors import RecsysError
from recsys.training.checkpoint import CheckpointStore

IDENTITY = {"config": "c1", "vocabulary": "v1"}


def variable(values, n_devices=8, axes=("d", None)):
    """Returns a variable of `values` on the first devices, split along `axes`."""
    mesh = keras.distribution.DeviceMesh(
        (n_devices,), ("d",), keras.distribution.list_devices()[:n_devices]
    )
    values = np.asarray(values)
    layout = keras.distribution.TensorLayout(axes[: values.ndim], mesh)
    made = keras.Variable(
        np.zeros_like(values), dtype=str(values.dtype), trainable=False, layout=layout
    )
    made.assign(values)
    return made


def arrays(variables):
    return {path: v.value for path, v in variables.items()}


def numbers(variables):
    return {path: np.asarray(v.value) for path, v in variables.items()}


def filled(value, n_devices=8):
    """Returns two variables that hold `value` everywhere."""
    return {
        "items/table": variable(np.full((16, 4), value, np.float32), n_devices),
        "adam/iterations": variable(np.int32(value), n_devices, ()),
    }


def assert_filled(variables, value):
    for found in numbers(variables).values():
        np.testing.assert_array_equal(found, np.full_like(found, value))


def store_of(folder, **kwargs):
    return CheckpointStore(folder, kwargs.pop("identity", IDENTITY), **kwargs)


def saved(folder, *steps, **kwargs):
    """Saves a checkpoint of each step, filled with its number."""
    store = store_of(folder, **kwargs)
    for step in steps:
        store.save(step, arrays(filled(step)), {"epoch": step // 10})
    store.close()


def test_a_checkpoint_counts_only_after_what_it_names(tmp_path):
    first = Future()
    store = store_of(tmp_path)
    store.save(10, arrays(filled(10)), {}, after=first)
    time.sleep(1.0)  # It is written by now, in all likelihood.
    assert store.steps() == []
    first.set_result(None)
    store.wait()
    assert store.steps() == [10]
    failed = Future()
    failed.set_exception(OSError("the disk went away"))
    store.save(20, arrays(filled(20)), {}, after=failed)
    with pytest.raises(RecsysError, match=r"R330.*the disk went away"):
        store.wait()
    assert store.steps() == [10]
    store.close()


def restored(folder, variables, **kwargs):
    store = store_of(folder, **kwargs)
    try:
        return store.restore(variables)
    finally:
        store.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_restores_what_was_saved_by_path(tmp_path):
    rng = np.random.default_rng(1)
    values = {
        "b/kernel": rng.normal(size=(3, 5)).astype(np.float32),
        "a/table": rng.normal(size=(16, 4)).astype(np.float32),
        "a/table_slot": rng.normal(size=(16, 1)).astype(np.float32),
        "a.b/seed": rng.integers(0, 2**32, 2, np.uint32),
        "steps": np.int32(7),
        "half": rng.normal(size=4).astype(jnp.bfloat16),
    }
    axes = {"a/table": ("d", None), "a/table_slot": ("d", None)}
    variables = {p: variable(v, axes=axes.get(p, (None, None))) for p, v in values.items()}
    state = {"input": {"epoch": 2, "step": 17}, "curve": [[1, 0.1 + 0.2]], "best": None}
    store = store_of(tmp_path / "run")
    store.save(120, arrays(variables), state)
    store.close()
    others = {
        p: variable(np.zeros_like(v), axes=axes.get(p, (None, None)))
        for p, v in reversed(values.items())
    }
    places = {path: v.value.sharding for path, v in others.items()}
    found = restored(tmp_path / "run", others)
    assert (found.step, found.state, found.damaged) == (120, state, ())
    for path, value in values.items():
        np.testing.assert_array_equal(np.asarray(others[path].value), value)
        assert others[path].value.sharding == places[path]


def test_nothing_is_restored_from_an_empty_folder(tmp_path):
    variables = filled(3)
    assert restored(tmp_path / "new", variables) is None
    assert_filled(variables, 3)


@pytest.mark.parametrize("path", [(8, 4, 1, 8), (1, 2, 8), (8, 7, 8), (7, 4, 7)])
def test_moves_between_meshes_without_a_bit_changed(tmp_path, path):
    rows, width = 5000, 3
    by_row = np.random.default_rng(2).normal(size=(rows, width)).astype(np.float32)

    def table(n_devices, values):
        places = padded_rows(rows, n_devices)
        out = np.zeros((places, width), np.float32)
        out[physical_rows(np.arange(rows), places)] = values
        tower = variable(values[:5], n_devices, (None, None))
        return {"t/embeddings": variable(out, n_devices), "dense": tower}

    variables = table(path[0], by_row)
    for step, n_devices in enumerate(path[1:]):
        store = store_of(tmp_path, rows={"t/embeddings": rows})
        store.save(step, arrays(variables), {})
        variables = table(n_devices, np.zeros_like(by_row))
        assert store.restore(variables).step == step
        store.close()
    found = numbers(variables)["t/embeddings"]
    np.testing.assert_array_equal(found[physical_rows(np.arange(rows), len(found))], by_row)
    np.testing.assert_array_equal(numbers(variables)["dense"], by_row[:5])
    assert len(variables["t/embeddings"].value.sharding.device_set) == path[-1]


def test_a_step_that_takes_over_the_arrays_changes_nothing_of_what_is_saved(tmp_path):
    table = variable(np.zeros((2**17, 64), np.float32))
    step = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=table.value.sharding)
    value = step(table.value)
    store = store_of(tmp_path)
    for number in range(1, 4):
        store.save(number, {"t": value}, {})
        for _ in range(3):
            value = step(value)
        value.block_until_ready()
    for number, expected in [(3, 7), (2, 4)]:
        assert store.restore({"t": table}).step == number
        np.testing.assert_array_equal(np.asarray(table.value), np.float32(expected))
        shutil.rmtree(tmp_path / str(number))
    store.close()


# --- what must not be restored


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"items/table": None}, "'items/table' must be absent, as in the model; it is float32"),
        (
            {"new": np.zeros(3, np.float32)},
            r"'new' must be float32\[3\], as in the model; it is absent",
        ),
        ({"items/table": np.zeros((16, 8), np.float32)}, r"float32\[16, 8\].*float32\[16, 4\]"),
        ({"adam/iterations": np.float32(0)}, r"float32\[\], as in the model; it is int32\[\]"),
    ],
)
def test_other_variables_are_refused_before_anything_is_assigned(tmp_path, change, words):
    saved(tmp_path / "run", 5)
    variables = filled(1)
    for path, value in change.items():
        variables.pop(path, None)
        if value is not None:
            variables[path] = variable(value, axes=(None, None))
    before = numbers(variables)
    with pytest.raises(RecsysError, match=f"R333.*{words}.*train from scratch"):
        restored(tmp_path / "run", variables)
    for path, value in before.items():
        np.testing.assert_array_equal(numbers(variables)[path], value)


def test_a_table_of_other_rows_is_refused_however_it_is_padded(tmp_path):
    saved(tmp_path, 5, rows={"items/table": 15})
    with pytest.raises(RecsysError, match=r"R333.*of 16 rows, as in the model.*of 15 rows"):
        restored(tmp_path, filled(1), rows={"items/table": 16})


@pytest.mark.parametrize(
    ("identity", "part"),
    [
        ({"config": "c1", "vocabulary": "v2"}, "vocabulary"),
        ({"config": "c2", "vocabulary": "v2"}, "config and another vocabulary"),
        ({"config": "c1"}, "vocabulary"),
        ({"config": "c1", "vocabulary": "v1", "code": "x"}, "code"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, identity, part):
    saved(tmp_path, 5)
    variables = filled(1)
    with pytest.raises(RecsysError, match=f"R332.*of another {part}.*Restore"):
        restored(tmp_path, variables, identity=identity)
    assert_filled(variables, 1)
    store = store_of(tmp_path, identity=identity)
    with pytest.raises(RecsysError, match="R332"):
        store.save(5, arrays(variables), {})
    store.close()


# --- damage


def flip(path):
    data = bytearray(path.read_bytes())
    at = random.Random(len(data)).randrange(len(data))
    data[at] ^= 1
    path.write_bytes(data)


def cut(path):
    os.truncate(path, path.stat().st_size - 2)


@pytest.mark.parametrize("harm", [flip, cut, os.unlink])
def test_damage_of_any_file_is_seen_and_the_checkpoint_before_it_restored(tmp_path, harm):
    saved(tmp_path / "good", 10, 20)
    files = [p for p in (tmp_path / "good" / "20").rglob("*") if p.is_file()]
    assert len(files) > 5
    for number, file in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", folder)
        harm(folder / file.relative_to(tmp_path / "good"))
        variables = filled(1)
        found = restored(folder, variables)
        assert (found.step, found.state) == (10, {"epoch": 1})
        assert_filled(variables, 10)
        (words,) = found.damaged
        if file.name != "manifest.json":  # A damaged one may list another file.
            assert words.startswith(f"step 20: {file.relative_to(tmp_path / 'good' / '20')}: ")
        assert names(folder) == ["10", "20.damaged"]


def test_without_a_whole_checkpoint_the_run_stops_each_time(tmp_path):
    saved(tmp_path, 10, 20)
    (tmp_path / "20" / "_METADATA").unlink()
    flip(tmp_path / "10" / "manifest.json")
    for _ in range(2):
        variables = filled(1)
        with pytest.raises(RecsysError, match=r"R331.*step 20: _METADATA: it.*; step 10: "):
            restored(tmp_path, variables)
        assert_filled(variables, 1)


def test_what_stopped_writers_left_is_swept(tmp_path):
    saved(tmp_path, 10)
    for name in ["20.writing.orbax-checkpoint-tmp", "20.writing", "5.old"]:
        shutil.copytree(tmp_path / "10", tmp_path / name)
    (tmp_path / "3.damaged").mkdir()
    variables = filled(1)
    assert restored(tmp_path, variables).step == 10
    assert names(tmp_path) == ["10", "3.damaged"]


# --- what stays


def test_the_newest_stay(tmp_path):
    saved(tmp_path, 8, 9, 10, 100, keep=3)
    assert names(tmp_path) == ["10", "100", "9"]


def test_a_run_that_was_set_back_drops_what_came_after(tmp_path):
    saved(tmp_path, 10, 20, 30, keep=5)
    saved(tmp_path, 15, keep=5)
    assert names(tmp_path) == ["10", "15"]


def test_a_step_that_is_there_is_not_saved_again(tmp_path):
    saved(tmp_path, 10)
    store = store_of(tmp_path)
    store.save(10, arrays(filled(11)), {})
    variables = filled(1)
    assert store.restore(variables).state == {"epoch": 1}
    assert_filled(variables, 10)
    store.close()


def test_stores_beside_each_other_keep_their_own(tmp_path):
    last, best = store_of(tmp_path / "last"), store_of(tmp_path / "best", keep=1)
    for step in (1, 2, 3):
        last.save(step, arrays(filled(step)), {})
        if step < 3:
            best.save(step, arrays(filled(step)), {"recall": step / 10})
    variables = filled(0)
    assert best.restore(variables).state == {"recall": 0.2}
    assert_filled(variables, 2)
    assert last.restore(variables).step == 3
    assert (names(tmp_path / "last"), names(tmp_path / "best")) == (["2", "3"], ["2"])
    last.close()
    best.close()


def test_state_that_is_not_json_is_refused_at_once(tmp_path):
    store = store_of(tmp_path)
    with pytest.raises(TypeError):
        store.save(1, arrays(filled(1)), {"loss": np.float32(1)})
    store.close()
    assert names(tmp_path) == []


# --- a disk that takes no more

# TensorStore writes several parts at once; Orbax reports the first failure, and Python the others
# when they are discarded.
told_twice = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def thrown_away():
    """Discards the failed task before the test ends, while the warning is expected."""
    yield
    gc.collect()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB, where one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def large(value):
    return {"t": variable(np.full((2**16, 8), value, np.float32))}


def assert_goes_on_from_the_first(store, folder, match):
    with pytest.raises(RecsysError, match=match):
        store.wait()
    store.wait()  # The error is told once, and the store lives on.
    variables = large(0)
    assert store.restore(variables).step == 1
    assert_filled(variables, 1)
    assert names(folder) == ["1"]


@told_twice
@pytest.mark.usefixtures("thrown_away")
def test_a_full_disk_is_reported_and_the_last_checkpoint_stays(small_disk):
    folder = small_disk / "run"
    store = store_of(folder)
    store.save(1, arrays(large(1)), {})
    store.save(2, arrays(large(2)), {})
    words = "R330.*step 2 .*bytes are free.*No space left on device.*it resumes from step 1"
    assert_goes_on_from_the_first(store, folder, words)
    store.close()


@told_twice
@pytest.mark.usefixtures("thrown_away")
def test_a_file_that_may_not_grow_is_reported_by_the_next_save(tmp_path):
    store = store_of(tmp_path)
    store.save(1, arrays(large(1)), {})
    store.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        store.save(2, arrays(large(2)), {})
        with pytest.raises(RecsysError, match=r"R330.*step 2 .*it resumes from step 1"):
            store.save(3, arrays(large(3)), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["1"]
    store.save(3, arrays(large(3)), {})
    store.close()
    assert names(tmp_path) == ["1", "3"]


def save_and_close(store):
    with contextlib.closing(store):
        store.save(1, arrays(large(1)), {})
        store.wait()


@told_twice
@pytest.mark.usefixtures("thrown_away")
@pytest.mark.parametrize("n_bytes", [1, 100])
def test_what_failed_is_reported_by_the_save_and_not_again_when_the_store_is_closed(
    tmp_path, n_bytes
):
    """Orbax keeps the error of a file of its own that found no room, and raises it to the end."""
    store = store_of(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        with pytest.raises(RecsysError, match=r"R330.*step 1 "):
            save_and_close(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == []


def test_a_folder_that_vanished_is_reported(tmp_path):
    store = store_of(tmp_path / "run")
    (tmp_path / "run").rmdir()
    (tmp_path / "run").write_text("")
    with pytest.raises(RecsysError, match=r"R330.*it starts from scratch"):
        store.save(1, arrays(filled(1)), {})
    store.close()
