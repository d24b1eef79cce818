"""Which versions are served while a serving folder changes."""

import gc
import shutil
import threading
import weakref

import pytest

from recsys.bundles.bundle import verify, write_manifest
from recsys.bundles.publishing import publish, rollback
from recsys.errors import RecsysError
from recsys.serving import pool as pool_module
from recsys.serving.pool import Pool, ServerMetrics


class FakeModel:
    def __init__(self, folder):
        verify(folder)
        self.version = int(folder.name)
        self.content = (folder / "weights").read_text()
        self.itself = self  # As a SavedModel: only the collector frees it.


class Heard(ServerMetrics):
    """Metrics of a pool, and the versions that it serves in turn."""

    def __init__(self):
        super().__init__()
        self.served = []

    def serving(self, newest, n_loaded, is_swap):
        super().serving(newest, n_loaded, is_swap)
        self.served.append((newest, n_loaded))

    def count(self, name):
        return self._registry.get_sample_value(f"recsys_model_{name}")


class Folder:
    def __init__(self, path):
        self.root, self._bundle = path / "serving" / "m", path / "bundle"

    def push(self, content):
        self._bundle.mkdir(exist_ok=True)
        (self._bundle / "weights").write_text(content)
        write_manifest(self._bundle, {})
        return publish(self._bundle, self.root, keep=9)

    def delete(self, version):
        shutil.rmtree(self.root / str(version))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def pool(folder, heard):
    return Pool("m", folder.root, FakeModel, 1, heard)


def served(pool):
    return [(model.version, model.content) for model in pool.models]


def test_a_missing_folder_serves_nothing_until_something_is_pushed(pool, folder, heard):
    pool.refresh()
    assert served(pool) == []
    folder.push("a")
    pool.refresh()
    assert served(pool) == [(1, "a")]
    assert heard.count("swaps_total") == 0


def test_the_newest_version_takes_the_place_of_the_one_before(pool, folder, heard):
    for content in "ab":
        folder.push(content)
        pool.refresh()
    pool.refresh()
    assert served(pool) == [(2, "b")]
    assert (heard.count("load_seconds_count"), heard.served, heard.count("swaps_total")) == (
        2,
        [(1, 1), (2, 2), (2, 1)],
        1,
    )


def test_a_deleted_newest_version_swaps_back(pool, folder):
    for content in "abc":
        folder.push(content)
    pool.refresh()
    folder.delete(3)
    pool.refresh()
    assert served(pool) == [(2, "b")]


def test_another_bundle_under_a_number_that_was_served_is_loaded(pool, folder):
    for content in "ab":
        folder.push(content)
    pool.refresh()
    folder.delete(2)
    folder.push("c").rename(folder.root / "2")  # As whoever publishes by hand may do.
    pool.refresh()
    assert served(pool) == [(2, "c")]


def test_a_rollback_swaps_back_and_forth(pool, folder, heard):
    for content in "abc":
        folder.push(content)
    pool.refresh()
    rollback(folder.root)
    pool.refresh()
    assert served(pool) == [(2, "b")]
    rollback(folder.root, 3)
    pool.refresh()
    assert served(pool) == [(3, "c")]


def test_a_damaged_version_is_refused_and_the_one_before_stays(pool, folder, heard, caplog):
    folder.push("a")
    pool.refresh()
    (folder.push("b") / "weights").write_text("!")
    pool.refresh()
    pool.refresh()
    assert served(pool) == [(1, "a")]
    assert heard.count("load_failures_total") == 1  # Once: it is not read again at every look.
    assert "version 2 refused: [R502]" in caplog.text
    assert pool.failures[2].code == "R502"
    folder.push("c")
    pool.refresh()
    assert served(pool) == [(3, "c")]


def test_a_damaged_version_stays_out_where_the_one_before_is_gone(pool, folder):
    folder.push("a")
    pool.refresh()
    (folder.push("b") / "weights").write_text("!")
    folder.delete(1)
    pool.refresh()
    assert served(pool) == [(1, "a")]


def test_at_the_start_the_newest_whole_version_is_served(pool, folder):
    folder.push("a")
    (folder.push("b") / "weights").write_text("!")
    pool.refresh()
    assert served(pool) == [(1, "a")]


def test_a_refused_version_is_tried_again_later(pool, folder, monkeypatch, heard):
    path = folder.push("a")
    (path / "weights").write_text("!")
    monkeypatch.setattr(pool_module, "_FIRST_RETRY_S", 0.0)
    pool.refresh()
    (path / "weights").write_text("a")
    pool.refresh()
    assert (served(pool), heard.count("load_failures_total"), pool.failures) == ([(1, "a")], 1, {})


@pytest.mark.parametrize(
    "error", [MemoryError("big"), KeyError("k"), RecsysError("R543", "No.", "x.")]
)
def test_whatever_a_load_raises_is_a_refusal(folder, heard, error):
    def load(_path):
        raise error

    pool = Pool("m", folder.root, load, 1, heard)
    folder.push("a")
    pool.refresh()
    assert (heard.count("load_failures_total"), pool.failures[1].code) == (
        1,
        getattr(error, "code", "R566"),
    )


def test_nothing_on_disk_leaves_what_is_loaded(pool, folder, caplog):
    folder.push("a")
    pool.refresh()
    folder.delete(1)
    pool.refresh()
    pool.refresh()
    assert served(pool) == [(1, "a")]
    assert caplog.text.count("the loaded version stays") == 1


def test_two_versions_are_kept_where_two_are_wanted(folder, heard):
    pool = Pool("m", folder.root, FakeModel, 2, heard)
    for content in "abc":
        folder.push(content)
    pool.refresh()
    assert served(pool) == [(2, "b"), (3, "c")]
    assert heard.served == [(3, 1), (3, 2)]  # The newest answers first.
    folder.push("d")
    pool.refresh()
    assert served(pool) == [(3, "c"), (4, "d")]


def test_a_request_keeps_its_version_and_the_last_one_frees_it(pool, folder):
    folder.push("a")
    pool.refresh()
    in_flight = pool.models[-1]
    gone = weakref.ref(in_flight)
    folder.push("b")
    gc.disable()  # The pool must do it.
    try:
        pool.refresh()
        assert in_flight.content == "a"
        del in_flight
        pool.refresh()
        pool.refresh()
        assert gone() is None
    finally:
        gc.enable()


def test_the_old_version_answers_while_the_new_one_loads(folder, heard):
    may_end, has_begun = threading.Event(), threading.Event()

    def load(path):
        if path.name == "2":
            has_begun.set()
            may_end.wait(10)
        return FakeModel(path)

    pool = Pool("m", folder.root, load, 1, heard)
    is_over = threading.Event()
    watcher = threading.Thread(target=pool.watch, args=(0.01, is_over))
    folder.push("a")
    pool.refresh()
    folder.push("b")
    watcher.start()
    assert has_begun.wait(10)
    assert (served(pool), pool.loading) == ([(1, "a")], 2)
    is_over.set()
    may_end.set()
    watcher.join(10)
    assert served(pool) == [(2, "b")]
