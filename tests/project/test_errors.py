"""Errors: their form, their way across processes, and their page."""

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from recsys.errors import ConfigError, RecsysError, UsageError

CODE = re.compile(r"R\d{3}")


def codes_in_sources() -> set[str]:
    texts = (
        node.value
        for package in ("recsys", "components", "pipelines")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in texts if CODE.fullmatch(text)}


def sections_of_page() -> list[str]:
    page = (ROOT / "docs" / "errors.md").read_text()
    return re.findall(r"^## (R\d{3})$", page, flags=re.MULTILINE)


def test_every_code_has_one_section_and_every_section_a_code():
    sections = sections_of_page()
    assert sorted(sections) == sorted(codes_in_sources())
    assert sections == sorted(sections)


def test_the_text_is_rule_then_received_then_cure():
    error = RecsysError("R201", "A rule.", "A cure.", (None, None))
    assert str(error) == "[R201] A rule. Received: (None, None). A cure."


def test_the_text_leaves_out_what_was_not_received():
    assert str(RecsysError("R201", "A rule.", "A cure.")) == "[R201] A rule. A cure."


def test_none_is_shown_as_received():
    assert "Received: None." in str(RecsysError("R201", "A rule.", "A cure.", None))


@given(st.one_of(st.text(), st.binary(), st.lists(st.integers())))
def test_what_was_received_takes_at_most_80_characters(received):
    error = RecsysError("R201", "A rule.", "A cure.", received)
    assert error.received is not None
    assert len(error.received) <= 80


@pytest.mark.parametrize(
    ("kind", "exit_code"), [(RecsysError, 1), (UsageError, 2), (ConfigError, 2)]
)
@pytest.mark.parametrize("received", [(), ("x" * 200,)], ids=["nothing", "long"])
def test_an_error_crosses_a_process_boundary_unchanged(kind, exit_code, received):
    error = kind("R107", "A rule.", "A cure.", *received)
    other = RecsysError.from_json(error.to_json())
    assert str(other) == str(error)
    assert other.exit_code == exit_code
    assert other.to_json() == error.to_json()
