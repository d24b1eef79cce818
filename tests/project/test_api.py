"""The public API: what `import recsys` takes, and what it offers."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import recsys
from recsys.config import TrainConfig, TrainStage, TwoTowerConfig
from recsys.fingerprint import code_fingerprint
from recsys.registry import modules_of, plugins_of

SIGNATURES = Path(__file__).parent / "api_signatures.txt"
HEAVY = ("keras", "jax", "tensorflow", "numpy", "pyarrow", "pydantic", "apache_beam")


def loaded_by(code):
    """Returns which heavy packages a program imports."""
    program = (
        f"{code}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout)


def test_the_import_does_nothing_and_loads_nothing():
    assert loaded_by("import recsys; dir(recsys)") == []


@pytest.mark.parametrize(
    "code",
    [
        "recsys.load_config('configs/movielens_small.yaml')",
        "recsys.load_config('configs/movielens_small.yaml', ['train.loss=bpr'])",
        "recsys.TrainConfig(loss='full_softmax'), recsys.TwoTowerConfig(pooling='attention')",
        "recsys.register_loss, recsys.Loss, recsys.losses.Bpr",
    ],
)
def test_a_config_is_read_without_keras(code):
    assert not {"keras", "jax", "tensorflow"} & {*loaded_by(f"import recsys; {code}")}


@pytest.mark.parametrize(
    ("chosen", "is_loaded", "backend"),
    [(None, False, "jax"), ("tensorflow", False, "tensorflow"), (None, True, None)],
    ids=["by-default", "told", "too-late"],
)
def test_keras_runs_on_jax_where_nothing_else_is_chosen(monkeypatch, chosen, is_loaded, backend):
    monkeypatch.delenv("KERAS_BACKEND")
    if chosen:
        monkeypatch.setenv("KERAS_BACKEND", chosen)
    monkeypatch.setitem(sys.modules, "keras", sys)
    if not is_loaded:
        monkeypatch.delitem(sys.modules, "keras")
    recsys.TrainConfig  # noqa: B018
    assert os.environ.get("KERAS_BACKEND") == backend


def test_the_module_that_trains_runs_on_jax_without_any_variable(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND")
    loaded = loaded_by("from recsys.stages.train import train")
    assert "jax" in loaded
    assert "tensorflow" not in loaded


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="nothing"):
        recsys.nothing  # noqa: B018


def signature(thing):
    """Returns how a public thing is called, on one line each for its public methods."""
    if inspect.isclass(thing) and hasattr(thing, "model_fields"):
        yield f"{{{', '.join(thing.model_fields)}}}"
    elif inspect.isclass(thing) and not dataclasses.is_dataclass(thing):
        yield str(inspect.signature(thing.__init__))
    elif callable(thing):
        yield str(inspect.signature(thing))
    if inspect.isclass(thing) and thing.__module__.startswith("recsys."):
        for name, method in sorted(own_and_of_private_bases(thing).items()):
            method = getattr(method, "__func__", method)
            if not name.startswith("_") and inspect.isfunction(method):
                yield f".{name}{inspect.signature(method)}"


def own_and_of_private_bases(cls):
    """Returns what a class defines, with what its bases do that have no public name."""
    found = {}
    for base in cls.__mro__:
        is_public = base is not cls and base.__name__ in recsys.__all__
        if is_public or not base.__module__.startswith("recsys."):
            break
        found = {**vars(base), **found}
    return found


def signatures():
    """Yields a line for each public name and method."""
    for name in sorted(recsys.__all__):
        for line in signature(getattr(recsys, name)) if name not in MODULES else ("module",):
            # Which of two equal annotations typing shows depends on what was imported before.
            line = re.sub(r"Optional\[(\w+)\]", r"\1 | None", line)
            yield f"{name}{line}" if line[0] in ".(" else f"{name} {line}"


MODULES = {"layers", "losses", "metrics", "models"}


def test_public_signatures_are_frozen():
    """Renew with `RENEW_API=1 pytest tests/project/test_api.py`, and say so in CHANGELOG.md."""
    # The repr of a default may hold an address.
    text = re.sub(" at 0x[0-9a-f]+", "", "".join(f"{line}\n" for line in signatures()))
    if os.environ.get("RENEW_API"):
        SIGNATURES.write_text(text)
    assert SIGNATURES.read_text() == text


def test_the_contents_list_every_public_name():
    assert sorted(recsys.__all__) == dir(recsys)


@pytest.mark.parametrize(
    ("parts", "modules"),
    [
        ([TrainConfig()], ["recsys.losses.softmax"]),
        ([TrainConfig(loss="bpr")], ["recsys.losses.pairwise"]),
        ([TwoTowerConfig()], ["recsys.models.encoders", "recsys.models.two_tower"]),
    ],
)
def test_a_config_reports_the_modules_of_what_it_names(parts, modules):
    assert {*modules} <= {*modules_of(*parts)}


def test_the_sources_of_a_plugin_are_part_of_a_fingerprint(tmp_path, monkeypatch):
    package = tmp_path / "my_api_plugin"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import recsys\n\n@recsys.register_loss('api_loss')\nclass Mine(recsys.Loss):\n    pass\n"
    )
    (package / "other.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    raw = {"plugins": ["my_api_plugin"], "train": {"loss": "api_loss"}}
    config = TrainStage.model_validate_json(json.dumps(raw))
    before = code_fingerprint(config.train)
    (package / "other.py").write_text("x = 2\n")
    assert code_fingerprint(config.train) != before
    assert plugins_of(("my_api_plugin",), config.train) == ("my_api_plugin",)
    assert plugins_of(("my_api_plugin",), config.model) == ()
