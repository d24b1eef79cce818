"""Files that find no room are named in the error, and what was there before stays."""

import resource
from contextlib import contextmanager

import pytest

from recsys.system.events import emit
from recsys.system.files import commit_text, naming


@contextmanager
def files_up_to(n_bytes):
    """Limits the size of files, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_text_that_finds_no_room_is_named_and_the_older_one_stays(tmp_path):
    path = tmp_path / "facts.json"
    commit_text("old", path)
    with files_up_to(100), pytest.raises(OSError, match="File too large") as caught:
        commit_text("new" * 1000, path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_events_that_find_no_room_are_named(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("RECSYS_EVENTS", str(path))
    emit("note", text="there is room")
    size = path.stat().st_size
    with files_up_to(size), pytest.raises(OSError, match="File too large") as caught:
        emit("note", text="there is none")
    assert caught.value.filename == str(path)


def test_an_error_that_names_a_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path / "a"):
        (tmp_path / "b").read_text()
    assert caught.value.filename == str(tmp_path / "b")
