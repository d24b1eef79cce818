"""The formula of a pair's score, against Python's own arithmetic."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.pair.score import Score

LABELS = ("click", "like", "click-like", "e5")
PREDICTED = {name: np.linspace(0.1, 0.9, 5) ** (i + 1) for i, name in enumerate(LABELS)}

numbers = st.floats(0, 1e3, allow_nan=False).map(lambda n: f"{n!r}") | st.just("1e2")
atoms = st.sampled_from(LABELS) | numbers


def _composed(parts):
    powers = st.sampled_from(["0", "1", "2", "3", "0.5"])
    base = st.sampled_from(LABELS)
    return st.one_of(
        st.tuples(parts, st.sampled_from(["+", " - ", "*", " * "]), parts).map("".join),
        st.tuples(base, st.sampled_from(["^", " ** "]), powers).map("".join),
        parts.map(lambda text: f"({text})"),
        parts.map(lambda text: f"(-{text})"),
    )


formulas = st.recursive(atoms, _composed, max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(formulas)
def test_a_formula_has_the_value_of_pythons_arithmetic(text):
    def name(match):
        return f"P[{match[0]!r}]"

    python = re.sub(r"click-like|click|like|e5(?<!\de5)", name, text).replace("^", "**")
    expected = eval(python, {"P": PREDICTED})  # noqa: S307 - the test's own text
    if not any(label in text for label in ("click", "like", "e5")):
        with pytest.raises(ValueError, match="must name a label"):
            Score.parse(text, LABELS)
        return
    value = Score.parse(text, LABELS).value(PREDICTED)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("click * buy", r"must have a label \(click, like.*at character 9; received 'buy'"),
        ("click like", r"an operator .*received 'like'"),
        ("click ^ like", r"a number as the power at character 9"),
        ("click ^ -1", r"a number as the power at character 9; received '-'"),
        ("(click", r"'\)' at character 7; received its end"),
        ("click +", r"a label .*received its end"),
        ("1e999 * click", "a finite number"),
        ("__import__('os')", "received '__import__'"),
        ("(" * 60 + "click" + ")" * 60, "at most 50 nested parentheses"),
        ("2 * 3", r"must name a label \(click"),
    ],
)
def test_what_is_no_formula_is_refused_with_its_place(text, message):
    with pytest.raises(ValueError, match=message):
        Score.parse(text, LABELS)


def test_an_empty_formula_is_the_first_label():
    assert Score.parse("", LABELS).labels == ("click",)


def test_a_fractional_power_of_a_negative_amount_is_zero():
    score = Score.parse("click ^ 0.5 + click ^ 2", ["click"])
    np.testing.assert_allclose(score.value({"click": np.array([-4.0, 4.0])}), [16.0, 18.0])
