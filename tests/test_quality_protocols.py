"""The published protocols of `benchmarks.quality`, on cases that fit on paper."""

import json
import math

import numpy as np
import pytest

from benchmarks.public_splits import (
    Csr,
    Split,
    load_beauty,
    load_gowalla,
    load_movielens_1m,
    write_data_folder,
)
from benchmarks.quality import PROTOCOLS, held_out_shares
from recsys.data.store import InteractionStore
from recsys.models import ModelInputs

USER = np.eye(3, 5, dtype=np.float32)


def split_of(kind, train, relevant, n_items, k, **more):
    return Split(Csr.of_lists(train, n_items), kind, (k,), Csr.of_lists(relevant, n_items), **more)


def test_recall_and_ndcg_over_all_items_leave_training_items_out():
    # User 0 ranks 0 1 2 3, but has 0; 1 and 3 are relevant. User 1 has nothing held out.
    item = np.array([[4, 0], [3, 0], [2, 0], [1, 0]], np.float32)
    split = split_of("ranked among all", [[0], [1]], [[1, 3], []], 4, 2)
    found = PROTOCOLS[split.kind](split, np.ones((2, 2), np.float32), item)
    ideal = 1 + 1 / math.log2(3)
    assert found == pytest.approx({"Recall@2": 0.5, "NDCG@2": 1 / ideal})


def test_one_item_among_all_is_a_hit_rate():
    item = np.array([[4, 0], [3, 0], [2, 0], [1, 0]], np.float32)
    split = split_of("ranked among all, one item", [[0], [3]], [[2], [2]], 4, 2)
    found = PROTOCOLS[split.kind](split, np.ones((2, 2), np.float32), item)
    # After its own items user 0 ranks 1 2 3, user 1 ranks 0 1 2.
    assert found == pytest.approx({"HR@2": 0.5, "NDCG@2": 0.5 / math.log2(3)})


def test_among_given_negatives_ties_count_against_and_the_item_itself_is_no_negative():
    item = np.array([[5.0], [5.0], [1.0], [7.0]], np.float32)
    candidates = np.array([[1, 2, 0], [3, 3, 1], [2, 0, 0]])
    split = split_of(
        "ranked among given negatives",
        [[], [], []],
        [[0], [1], [0]],
        4,
        2,
        candidates=candidates,
        users=np.arange(3),
    )
    found = PROTOCOLS[split.kind](split, np.ones((3, 1), np.float32), item)
    # Ranks: 2, for item 1 ties with item 0; 3; 1, for the negative 0 is the item itself.
    assert found["HR@2"] == pytest.approx(2 / 3)
    assert found["NDCG@2"] == pytest.approx((1 / math.log2(3) + 1) / 3)


def write_csr(path, lists, n_items):
    csr = Csr.of_lists(lists, n_items)
    shape = np.array([len(lists), n_items])
    np.savez(path, indices=csr.items, indptr=csr.offsets, shape=shape, data=np.ones(len(csr.items)))


def test_each_part_of_a_data_set_is_read_as_its_protocol_names_it(tmp_path):
    protocol = {"valid": {"train": "fit.npz", "test": "valid.npz"}}
    (tmp_path / "protocol.json").write_text(json.dumps(protocol))
    write_csr(tmp_path / "fit.npz", [[0, 2], [1]], 3)
    write_csr(tmp_path / "valid.npz", [[1], []], 3)
    split = load_gowalla(tmp_path, "valid")
    assert sorted(split.train[0].tolist()) == [0, 2]
    assert split.relevant[0].tolist() == [1]
    assert split.train.n_items == 3


def test_beauty_holds_the_last_item_back_and_for_validation_the_one_before(tmp_path):
    (tmp_path / "sequences.txt").write_text("1 3 1 2 4\n2 2 3 1 4\n")
    (tmp_path / "item2attributes.json").write_text('{"3": [7, 9]}')
    write_csr(tmp_path / "history_test.npz", [[1], [1]], 5)
    test, valid = (load_beauty(tmp_path, part) for part in ("test", "valid"))
    assert [test.seen[0].tolist(), test.relevant[0].tolist()] == [[3, 1, 2], [4]]
    # Either part trains without the last two.
    assert test.train[0].tolist() == valid.train[0].tolist() == [3, 1]
    assert [valid.seen[1].tolist(), valid.relevant[1].tolist()] == [[2, 3], [1]]
    assert test.item_tokens["attributes"] == [[], [], [], ["7", "9"], []]


def test_movielens_has_the_features_of_users_and_items_by_their_numbers(tmp_path):
    files = {"train": "t.npz", "candidates": "c.npz"}
    (tmp_path / "protocol.json").write_text(json.dumps({"test": files}))
    write_csr(tmp_path / "t.npz", [[0], [1]], 2)
    np.savez(tmp_path / "c.npz", user=[0, 1], pos=[1, 0], neg=[[0, 0], [1, 1]])
    (tmp_path / "items.csv").write_text("item,title,genres\n1,b,Comedy|War\n0,a,Drama\n")
    (tmp_path / "users.csv").write_text("user,gender,age,occupation\n0,F,1,10\n1,M,56,16\n")
    split = load_movielens_1m(tmp_path, "test")
    assert split.item_tokens["genres"] == [["Drama"], ["Comedy", "War"]]
    assert split.user_tokens["gender"] == [["F"], ["M"]]
    assert split.candidates.tolist() == [[0, 0, 1], [1, 1, 0]]


def test_a_split_becomes_a_data_folder_that_training_reads(tmp_path):
    train = Csr.of_lists([[2, 0], [1]], 3)
    write_data_folder(train, tmp_path, item_tokens={"c": [["x"], [], ["y", "x"]]})
    log = InteractionStore.open(tmp_path / "store", verify=True).train
    assert np.asarray(log.item_row[:]).tolist() == [3, 1, 2]
    assert np.asarray(log.user_row[:]).tolist() == [1, 1, 2]
    inputs = ModelInputs.open(tmp_path)
    assert inputs.catalogue.features[0].bags.tolist() == [[0, 0], [1, 0], [0, 0], [2, 1]]
    assert inputs.items.row_counts.tolist()[1:] == [1, 1, 1]


def test_items_of_a_user_without_times_come_in_any_order_but_stay_with_their_user():
    lists = [list(range(50)), [], [3], list(range(20, 60))]
    mixed = Csr.of_lists(lists, 60).shuffled()
    assert [sorted(mixed[user].tolist()) for user in range(4)] == lists
    assert mixed[0].tolist() != lists[0]
    assert np.array_equal(mixed.items, Csr.of_lists(lists, 60).shuffled().items)


def test_a_random_split_is_told_from_one_that_prefers_popular_items():
    draw = np.random.default_rng(0)
    popularity = 1.0 / np.arange(1, 301)
    lists = [
        draw.choice(300, 20, replace=False, p=popularity / popularity.sum()) for _ in range(2000)
    ]

    def shares(prefers_popular):
        order = np.sort if prefers_popular else draw.permutation  # 0 is the most popular.
        parts = [np.split(order(one), [4]) for one in lists]
        held, train = (Csr.of_lists([part[n].tolist() for part in parts], 300) for n in range(2))
        return held_out_shares(train, held)

    even, uneven = shares(False), shares(True)
    assert all(line["expected"] == pytest.approx(0.2) for line in even + uneven)
    assert all(0.5 < line["z_variance"] < 1.6 for line in even if line["items"] > 20)
    assert uneven[-1]["held_out"] > 0.3
    assert uneven[-1]["z_variance"] > 50
