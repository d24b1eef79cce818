"""The checks before the first step."""

import re

import numpy as np
import pyarrow as pa
import pytest
from batch_sources import N_ITEMS, make_log

from recsys.config import TrainConfig, VocabularyConfig
from recsys.data.catalogue import Catalogue
from recsys.data.event_log import EventLog
from recsys.data.hold_out import KeptEvents
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.models import ModelInputs
from recsys.tasks.retrieval.training.side import RetrievalTraining, check_events
from recsys.tasks.training_side import unknown_share
from recsys.training.optimization import check_updates

IDS = ["", *(f"i{n}" for n in range(1, N_ITEMS))]
CATALOGUE = Catalogue(IDS, IDS, ())


def test_users_without_an_order_in_time_are_reported_where_times_matter():
    user = np.array([1, 1, 2, 2, 2, 3, 4])
    log = make_log(user, np.array([1, 2, 3, 4, 5, 6, 7]), np.array([5, 5, 5, 5, 6, 7, 8]))
    events = KeptEvents(log)
    assert check_events(events, CATALOGUE) == []
    (sentence,) = check_events(events, CATALOGUE, "past")
    assert sentence.startswith("1 of 4 users did all that they did in one second")
    assert "model.history_of=others" in sentence


@pytest.mark.parametrize(("n_hash", "held", "expected"), [(0, [], 4), (2, [], 6), (0, [0], 2)])
def test_the_share_of_unknown_ids_counts_rows_that_are_shared(n_hash, held, expected):
    config = VocabularyConfig(hash_buckets=n_hash)
    ids = pa.array([f"id{n}" for n in range(8)])
    users, items = (Vocabulary(ids, np.ones(8, np.int64), config=config) for _ in range(2))
    log = make_log(np.array([0, 1, 0, 5]), np.array([0, 0, 4, 1]), np.arange(4))
    held_places = np.array(held, np.int64)
    events = KeptEvents(log, held_places)
    found = unknown_share(events, ModelInputs(users, items, CATALOGUE))
    assert found == pytest.approx(expected / (2 * (4 - len(held))))


def check(user, item, weight=None, held=()):
    user, item = np.array(user, int), np.array(item, int)
    weights = None if weight is None else np.array(weight, np.float32)
    log = make_log(user, item, np.arange(len(user)), weights)
    return check_events(KeptEvents(log, np.array(held, np.int64)), CATALOGUE)


@pytest.mark.parametrize(
    ("user", "item", "code"),
    [
        ([], [], "R324"),
        ([3, 3, 3], [1, 2, 3], "R324.*'users': 1"),
        ([1, 2, 3], [7, 7, 7], "R324.*'items': 1"),
        ([1, 2, 5], [0, 0, 0], "R325"),
    ],
    ids=["none", "one-user", "one-item", "all-unknown"],
)
def test_too_little_to_learn_from_is_an_error(user, item, code):
    with pytest.raises(RecsysError, match=code):
        check(user, item)


def test_a_log_without_shards_is_an_error():
    with pytest.raises(RecsysError, match="R324"):
        check_events(KeptEvents(EventLog(())), CATALOGUE)


def test_two_users_and_two_items_are_enough():
    assert check([1, 1, 5, 5], [1, 2, 1, 2]) == []


def test_most_users_with_one_event_are_remarked_on():
    assert check([1, 1, 5], [1, 2, 3]) == []
    (sentence,) = check([1, 2, 2, 5], [1, 2, 3, 4])
    assert sentence.startswith("2 of 3 users have one training positive")
    (sentence,) = check([1, 1, 5, 5], [1, 2, 3, 4], held=[1, 3])
    assert sentence.startswith("Every user has one training positive")


def test_what_is_held_back_does_not_count():
    with pytest.raises(RecsysError, match="R324"):
        check([1, 1, 5], [1, 2, 3], held=[2])


def test_all_weights_zero_is_an_error():
    with pytest.raises(RecsysError, match=r"R326.*2 weights of 0"):
        check([1, 5], [1, 2], [0, 0])


def test_some_weights_of_zero_and_unknown_items_are_reported():
    remarks = check([1, 1, 6, 6], [0, 2, 3, 0], [0, 1, 0, 1])
    assert remarks == [
        "2 of 4 training positives are of items without a row of their own.",
        "2 of 4 training positives have weight 0 and teach nothing.",
    ]


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("batch_size", {"batch_size": 100}),
        ("uniform_negatives", {"uniform_negatives": 12}),
    ],
)
def test_what_does_not_divide_among_the_devices_names_the_setting_and_a_number(key, changes):
    error = RetrievalTraining.uneven(TrainConfig(**changes), 8)
    assert error.code == "R321"
    assert re.search(rf"train\.{key} must.*multiple of 8,.*Use \d+\.", str(error))


def test_numbers_must_divide_into_the_groups_of_negatives_too():
    train = TrainConfig(batch_size=104, uniform_negatives=0, negative_groups=16)
    assert "batch_size" in str(RetrievalTraining.uneven(train, 8))


@pytest.mark.parametrize(("groups", "n_parts", "fitting"), [(3, 8, 2), (12, 8, 8), (5, 4, 4)])
def test_groups_that_devices_cant_share_evenly_name_fewer(groups, n_parts, fitting):
    train = TrainConfig(batch_size=480, uniform_negatives=0, negative_groups=groups)
    error = RetrievalTraining.uneven(train, n_parts)
    assert "negative_groups" in error.rule
    assert str(fitting) in error.cure


@pytest.mark.parametrize("groups", [1, 2, 8, 24])
def test_groups_divide_the_devices_or_are_a_multiple(groups):
    train = TrainConfig(batch_size=480, uniform_negatives=96, negative_groups=groups)
    assert RetrievalTraining.uneven(train, 8) is None


def test_a_batch_that_divides_is_accepted():
    assert RetrievalTraining.uneven(TrainConfig(batch_size=104, uniform_negatives=0), 8) is None


def test_a_run_of_fewer_steps_than_an_update_takes_is_an_error():
    assert check_updates(TrainConfig(accumulate=7), 7) == []
    with pytest.raises(RecsysError, match=r"R320.*at most 6"):
        check_updates(TrainConfig(accumulate=7), 6)


def test_a_run_that_ends_in_its_warm_up_is_remarked_on():
    train = TrainConfig(schedule={"warmup_steps": 1000})
    assert check_updates(train, 1000) == []
    (sentence,) = check_updates(train, 28)
    assert "28 steps" in sentence
    assert "1,000" in sentence
