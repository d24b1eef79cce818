"""The registry: what a config names by `type`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import pytest

from recsys import registry
from recsys.config import Strict
from recsys.errors import UsageError


@registry.register_loss("test_plain")
class Plain(Strict):
    """Has no options."""


@registry.register_loss("test_margin")
class Margin(Strict):
    """Has options."""

    margin: float = 0.5
    widths: tuple[int, ...] = ()


class Section(Strict):
    """A part of a config."""

    loss: Annotated[Any, registry.Choice("loss", default="test_margin")] = Plain()


@pytest.mark.parametrize(
    ("written", "read", "dumped"),
    [
        ("test_plain", Plain(), "test_plain"),
        ({"type": "test_plain"}, Plain(), "test_plain"),
        ("test_margin", Margin(), {"type": "test_margin", "margin": 0.5, "widths": []}),
        (
            {"margin": 1.5, "widths": [2, 3]},
            Margin(margin=1.5, widths=(2, 3)),
            {"type": "test_margin", "margin": 1.5, "widths": [2, 3]},
        ),
    ],
    ids=["name", "type", "defaults", "default-type"],
)
def test_a_choice_is_read_and_written(written, read, dumped):
    section = Section.model_validate_json(json.dumps({"loss": written}))
    assert section.loss == read
    assert section.model_dump(mode="json") == {"loss": dumped}
    assert Section.model_validate_json(section.model_dump_json()) == section


@pytest.mark.parametrize(
    ("written", "place", "message"),
    [
        ("nothing", ("loss",), "received 'nothing'"),
        ({"type": "test_plain", "margin": 1.0}, ("loss", "margin"), "Extra inputs"),
        ({"type": "test_margin", "margin": "a"}, ("loss", "margin"), "valid number"),
        ({"type": 3}, ("loss",), "must have a type"),
        (3, ("loss",), "or a map with type and options; received 3"),
        (["test_plain"], ("loss",), "must be one of"),
    ],
)
def test_a_wrong_choice_says_where_and_what(written, place, message):
    with pytest.raises(ValueError, match="validation error") as caught:
        Section.model_validate_json(json.dumps({"loss": written}))
    (problem,) = caught.value.errors()
    assert problem["loc"] == place
    assert message in problem["msg"]


def test_a_name_represents_one_class():
    with pytest.raises(UsageError, match="R109"):

        @registry.register_loss("test_plain")
        class Another(Strict):
            """Takes a name that is taken."""


def test_a_cell_that_runs_twice_replaces_its_class():
    def cell():
        @registry.register_loss("test_twice")
        class Twice(Strict):
            """One cell of a notebook."""

        return Twice

    first, second = cell(), cell()
    assert first is not second
    assert registry.get("loss", "test_twice") is second


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in registry.BUILT_INS.items() for name in names]
)
def test_a_built_in_class_is_where_the_table_says(kind, name):
    cls = registry.get(kind, name)
    assert registry.name_of(kind, cls) == name
    assert cls in (registry.config_type(kind, name), cls)
    if registry.built_ins.built_ins(kind)[name].config is not None:
        assert cls.Config is registry.config_type(kind, name)


SOURCE = """
from recsys import registry
from recsys.config import Strict

@registry.register_loss("{name}")
class OfPlugin(Strict):
    "Comes from outside."
"""


def test_a_plugin_registers_by_its_import(tmp_path, monkeypatch):
    (tmp_path / "registry_plugin.py").write_text(SOURCE.format(name="of_plugin"))
    monkeypatch.syspath_prepend(tmp_path)
    registry.load_plugins(["registry_plugin"])
    assert "of_plugin" in registry.names("loss")


@pytest.mark.parametrize("module", ["no_such_module_here", "os; import sys", "a-b", ""])
def test_a_plugin_that_is_no_module_is_refused(module):
    with pytest.raises(UsageError, match="R108"):
        registry.load_plugins([module])


@pytest.mark.parametrize("source", ["def (", "raise ValueError('no')", "1 / 0", "import nowhere"])
def test_a_plugin_that_fails_on_import_is_named(tmp_path, monkeypatch, source):
    (tmp_path / "failing_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"R108.*failing_plugin"):
        registry.load_plugins(["failing_plugin"])


def test_an_entry_point_registers(tmp_path):
    (tmp_path / "entry_plugin.py").write_text(SOURCE.format(name="of_entry"))
    info = tmp_path / "entry_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: entry-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[recsys.plugins]\nmine = entry_plugin\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from recsys import registry\nprint(registry.get('loss', 'of_entry').__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "OfPlugin", done.stderr
