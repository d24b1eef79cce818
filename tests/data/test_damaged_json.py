"""Damaged JSON files of a store, a bundle or a model folder are an error of one sentence."""

import pytest

from recsys.bundles.bundle import read_manifest
from recsys.cli import main
from recsys.data.catalogue import open_user_features
from recsys.data.store import InteractionStore
from recsys.errors import RecsysError
from recsys.tasks.model_folder import load_model

_CONTENTS = {
    "nothing": b"",
    "half": b'{"format": 1, "parts": {"tra',
    "no fields": b"{}",
    "a list": b"[1]",
    "no UTF-8": b'{"format": "\xff\xfe"}',
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
def test_damaged_json_is_one_sentence(reading, capsys, content):
    read, folder, path = reading
    path.write_bytes(content)
    see_sentence(read, folder, capsys)
