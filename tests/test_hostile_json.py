"""Files of fields from elsewhere, as a store's or a bundle's: damage is one sentence."""

import os

import pytest

from recsys.bundles.bundle import read_manifest
from recsys.cli import main
from recsys.data.catalogue import open_user_features
from recsys.data.store import InteractionStore
from recsys.errors import RecsysError
from recsys.models.saved import load_model

_CONTENTS = {
    "nothing": b"",
    "no fields": b"{}",
    "a list": b"[1]",
    "null": b"null",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep maps": b'{"format": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "no UTF-8": b'{"format": "\xff\xfe"}',
    "half a character": b'{"format": "\\ud800", "features": "\\udc00", "spec": "\\ud800"}',
    "a long number": b'{"format": ' + b"9" * 10_000 + b"}",
    "no number": b'{"format": NaN, "features": Infinity, "spec": NaN, "stage": 1}',
    "fields of other kinds": b'{"format": 1, "parts": [1], "cut": Infinity, "features": [7],'
    b' "spec": [], "stage": {}, "files": []}',
    "fields of other kinds inside": b'{"format": 1, "parts": {"train": {"a": 1}, "eval": "x"},'
    b' "cut": Infinity, "features": [{"name": 5, "rows": {}}], "spec": {}, "stage": {}}',
    "controls": b'{"format": "\\u001b[31m\\u202e"}',
}


def _plan(folder):
    main(["plan", "--data", str(folder)])


_READERS = {
    "store.json": (InteractionStore.open, "."),
    "manifest.json": (read_manifest, "."),
    "model.json": (load_model, "."),
    "features.json": (lambda folder: open_user_features(folder, 5), "."),
    "features.json of a plan": (_plan, "catalogue"),
}


def see_sentence(read, folder, capsys):
    try:
        read(folder)
    except RecsysError as error:
        text = str(error)
    except SystemExit:
        text = capsys.readouterr().err.strip()
    assert text.startswith("[R")
    assert "R900" not in text
    assert text.isprintable()


@pytest.fixture(params=_READERS)
def reading(request, tmp_path):
    """A reader, the folder that it reads, and the file of fields there."""
    read, place = _READERS[request.param]
    (tmp_path / place).mkdir(exist_ok=True)
    return read, tmp_path, tmp_path / place / request.param.split()[0]


@pytest.mark.parametrize("content", _CONTENTS.values(), ids=_CONTENTS)
def test_hostile_fields_are_one_sentence(reading, capsys, content):
    read, folder, path = reading
    path.write_bytes(content)
    see_sentence(read, folder, capsys)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_one_sentence(reading, capsys, kind):
    read, folder, path = reading
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    see_sentence(read, folder, capsys)
