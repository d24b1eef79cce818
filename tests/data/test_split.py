"""The time cut lies at a midnight and holds out about the share asked for."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.data.event_times import file_positions
from recsys.data.split import (
    DAY_S,
    choose_cut,
    count_positive_days,
    split_at,
)
from recsys.errors import RecsysError


@pytest.mark.parametrize(
    ("days", "share", "cut_day"),
    [
        ({1: 50, 2: 30, 3: 20}, 0.2, 3),
        ({1: 50, 2: 30, 3: 20}, 0.5, 2),
        ({1: 50, 2: 30, 3: 20}, 0.01, 3),
        ({1: 50, 2: 30, 3: 20}, 0.99, 2),
        ({1: 60, 2: 20, 3: 20}, 0.3, 2),
        ({1: 5, 90: 5}, 0.1, 90),
    ],
    ids=["exact", "half", "too-small", "too-large", "tie-takes-the-earlier", "gap"],
)
def test_the_cut_is_the_midnight_with_the_closest_share(days, share, cut_day):
    assert choose_cut(days, share) == cut_day * DAY_S


@given(
    st.dictionaries(st.integers(400, 430), st.integers(1, 9), min_size=2),
    st.floats(0.01, 0.99),
)
def test_no_other_midnight_is_closer(days, share):
    total = sum(days.values())

    def distance(day):
        return abs(sum(n for d, n in days.items() if d >= day) / total - share)

    cut = choose_cut(days, share) // DAY_S
    assert min(days) < cut <= max(days)
    others = range(min(days) + 1, max(days) + 1)
    assert distance(cut) == pytest.approx(min(distance(day) for day in others))


def test_positives_of_one_day_cannot_be_cut():
    with pytest.raises(RecsysError, match=r"R207.*'7 positives on 1 days'"):
        choose_cut({3: 7}, 0.1)


def test_without_a_positive_the_rules_that_say_what_one_is_are_named():
    with pytest.raises(RecsysError, match=r"R207.*positive_at_least.*weights"):
        choose_cut({}, 0.1)


def test_the_second_of_the_cut_is_held_out():
    table = pa.table({"timestamp": [DAY_S - 1, DAY_S, DAY_S + 1], "label": [1, 0, 1]})
    parts = split_at(table, DAY_S)
    assert parts["train"]["timestamp"].to_pylist() == [DAY_S - 1]
    assert parts["eval"]["timestamp"].to_pylist() == [DAY_S, DAY_S + 1]
    assert count_positive_days(table) == {0: 1, 1: 1}


def test_more_files_than_places_can_tell_apart_are_refused():
    line = np.array([1])
    assert file_positions(2**17 - 1, line)[0].as_py() > file_positions(2**17 - 2, line)[0].as_py()
    with pytest.raises(RecsysError, match="R266"):
        file_positions(2**17, line)
