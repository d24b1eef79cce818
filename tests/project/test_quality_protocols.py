"""`benchmarks.quality`: any folder with a protocol, by metrics that fit on paper."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

from benchmarks import quality
from benchmarks.public_splits import (
    MOST_TOKENS,
    Csr,
    Split,
    measure,
    read_split,
    write_data_folder,
)
from recsys.data.store import InteractionStore
from recsys.models import ModelInputs

# --- metrics


def split_of(protocol, masked, relevant, n_items, k, **more):
    masked = Csr.of_lists(masked, n_items)
    relevant = Csr.of_lists(relevant, n_items)
    return Split(protocol, (k,), masked, relevant, masked, masked, **more)


def test_one_item_among_all_is_a_hit_rate_and_a_tie_counts_against_it():
    item = np.array([[4, 0], [3, 0], [2, 0], [1, 0]], np.float32)
    split = split_of("loo_full", [[0], [3]], [[2], [2]], 4, 2)
    metrics = measure(split, np.ones((2, 2), np.float32), item)
    # After its own items user 0 ranks 1 2 3, user 1 ranks 0 1 2.
    expected = {"HR@2": 0.5, "NDCG@2": 0.5 / math.log2(3), "MRR": (1 / 2 + 1 / 3) / 2}
    assert metrics == pytest.approx(expected)
    item[3] = 2
    assert measure(split, np.ones((2, 2), np.float32), item)["HR@2"] == 0.0


def test_among_given_negatives_ties_count_against_and_the_item_itself_is_no_negative():
    item = np.array([[5.0], [5.0], [1.0], [7.0]], np.float32)
    candidates = np.array([[1, 2, 0], [3, 3, 1], [2, 0, 0]])
    more = {"candidates": candidates, "users": np.arange(3)}
    split = split_of("loo_neg", [[], [], []], [[0], [1], [0]], 4, 2, **more)
    metrics = measure(split, np.ones((3, 1), np.float32), item)
    # Ranks: 2, for item 1 ties with item 0; 3; 1, for the negative 0 is the item itself.
    assert metrics["HR@2"] == pytest.approx(2 / 3)
    assert metrics["NDCG@2"] == pytest.approx((1 / math.log2(3) + 1) / 3)
    assert metrics["MRR"] == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)


def test_metrics_of_many_users_are_those_of_lists_that_python_sorts():
    draw = np.random.default_rng(0)
    n_users, n_items, ks = 600, 40, (1, 5, 60)
    lists = [draw.permutation(n_items)[: draw.integers(2, 12)].tolist() for _ in range(n_users)]
    masked, relevant = (
        [items[2:] for items in lists],
        [items[: n % 3] for n, items in enumerate(lists)],
    )
    ranked = draw.random(n_items) < 0.8
    user, item = (draw.normal(size=(n, 4)).astype(np.float32) for n in (n_users, n_items))
    masked, relevant = (Csr.of_lists(part, n_items) for part in (masked, relevant))
    split = Split("fullrank", ks, masked, relevant, masked, masked, ranked=ranked)
    expected: dict[str, list[float]] = {}
    for number in range(n_users):
        if not len(relevant[number]):
            continue
        hidden = {*masked[number].tolist(), *np.flatnonzero(~ranked).tolist()}
        order = sorted(set(range(n_items)) - hidden, key=lambda i: -float(user[number] @ item[i]))
        for k in ks:
            gains = [1 / math.log2(place + 2) for place in range(k)]
            hits = [gains[n] for n, i in enumerate(order[:k]) if i in relevant[number]]
            expected.setdefault(f"Recall@{k}", []).append(len(hits) / len(relevant[number]))
            expected.setdefault(f"Precision@{k}", []).append(len(hits) / k)
            expected.setdefault(f"HR@{k}", []).append(bool(hits))
            ideal = sum(gains[: len(relevant[number])])
            expected.setdefault(f"NDCG@{k}", []).append(sum(hits) / ideal)
    means = {name: sum(values) / len(values) for name, values in expected.items()}
    assert measure(split, user, item) == pytest.approx(means)


# --- folders


def write_csr(path, lists, n_items):
    csr = Csr.of_lists(lists, n_items)
    shape = np.array([len(lists), n_items])
    data = np.ones(len(csr.items))
    np.savez(path, indices=csr.items, indptr=csr.offsets, shape=shape, data=data, format=b"csr")


def write_fullrank(folder, **more):
    """Three users and four items; in `valid` one event less."""
    parts = {
        "test": {"train": "t.npz", "test": "h.npz"},
        "valid": {"train": "f.npz", "test": "v.npz"},
    }
    parts["test"].update(more)
    (folder / "protocol.json").write_text(json.dumps({"type": "fullrank", "k": [1, 2], **parts}))
    write_csr(folder / "t.npz", [[0, 2], [1, 3], [3]], 4)
    write_csr(folder / "h.npz", [[1], [], [0, 1]], 4)
    write_csr(folder / "f.npz", [[0], [1, 3], [3]], 4)
    write_csr(folder / "v.npz", [[2], [], []], 4)


def write_loo_neg(folder):
    part = {"train": "t.npz", "candidates": "c.npz"}
    (folder / "protocol.json").write_text(json.dumps({"type": "loo_neg", "test": part}))
    write_csr(folder / "t.npz", [[0], [1], [2], []], 3)
    np.savez(folder / "c.npz", user=[2, 0], pos=[1, 2], neg=[[0, 0], [1, 1]])


def write_loo_full(folder, sequences="1 3 1 2 4\n2 2 3 2 4\n"):
    """Two users, who come back to what they had; 0 is no item."""
    part = {"train": "h.npz", "target": "t.npy"}
    protocol = {"type": "loo_full", "test": part, "valid": {"train": "hv.npz", "target": "tv.npy"}}
    (folder / "protocol.json").write_text(json.dumps(protocol))
    if sequences:
        (folder / "sequences.txt").write_text(sequences)
    write_csr(folder / "h.npz", [[1, 2, 3], [2, 3]], 5)
    write_csr(folder / "hv.npz", [[1, 3], [2, 3]], 5)
    np.save(folder / "t.npy", [4, 4])
    np.save(folder / "tv.npy", [2, 2])


def lists_of(csr):
    return [csr[user].tolist() for user in range(len(csr))]


def test_a_full_ranking_is_read_part_by_part(tmp_path):
    np.savez(tmp_path / "cold.npz", items=[1, 3])
    write_fullrank(tmp_path, items="cold.npz:items")
    test, valid = (read_split(tmp_path, part) for part in ("test", "valid"))
    assert [sorted(items) for items in lists_of(test.train)] == [[0, 2], [1, 3], [3]]
    assert lists_of(test.relevant) == [[1], [], [0, 1]]
    assert (test.k, test.order, test.ranked.tolist()) == ((1, 2), "none", [False, True] * 2)
    assert lists_of(valid.masked) == [[0], [1, 3], [3]]
    assert (lists_of(valid.relevant), valid.ranked) == ([[2], [], []], None)


def test_cases_with_negatives_of_their_own_are_read(tmp_path):
    write_loo_neg(tmp_path)
    split = read_split(tmp_path, "test")
    assert split.candidates.tolist() == [[0, 0, 1], [1, 1, 2]]
    assert (split.users.tolist(), split.k) == ([2, 0], (10,))
    assert lists_of(split.relevant) == [[2], [], [1], []]


def test_either_part_of_sequences_trains_without_the_last_two_of_each(tmp_path):
    write_loo_full(tmp_path)
    test, valid = (read_split(tmp_path, part) for part in ("test", "valid"))
    assert lists_of(test.seen) == [[3, 1, 2], [2, 3, 2]]
    assert lists_of(test.train) == lists_of(valid.train) == lists_of(valid.seen) == [[3, 1], [2, 3]]
    assert (lists_of(test.relevant), lists_of(valid.relevant)) == ([[4], [4]], [[2], [2]])
    assert lists_of(test.masked) == [[1, 2, 3], [2, 3]]
    assert test.order == "file"


def test_without_sequences_the_histories_have_no_order(tmp_path):
    write_loo_full(tmp_path, sequences="")
    split = read_split(tmp_path, "test")
    assert split.order == "none"
    assert [sorted(items) for items in lists_of(split.train)] == [[1, 3], [2, 3]]


def test_events_of_any_type_stand_in_the_order_of_the_sequences(tmp_path):
    write_fullrank(tmp_path)
    (tmp_path / "sequences.txt").write_text("1 2 0 1\n3 3 1 0\n2 3 1\n")
    split = read_split(tmp_path, "test")
    assert (lists_of(split.train), split.order) == ([[2, 0], [3, 1], [3]], "file")


def test_times_order_events_and_go_into_the_store(tmp_path):
    np.save(tmp_path / "times.npy", np.array([70, 60, 50, 90, 5]))
    write_fullrank(tmp_path, times="times.npy")
    split = read_split(tmp_path, "test")
    assert (lists_of(split.train), split.order) == ([[2, 0], [1, 3], [3]], "time")
    write_data_folder(split.train, tmp_path / "data", rule=split.rule, times=split.times)
    log = InteractionStore.open(tmp_path / "data" / "store").train
    assert np.asarray(log.timestamp).tolist() == [60, 70, 50, 90, 5]


def test_a_store_says_how_the_test_part_was_drawn_so_that_validation_draws_alike(tmp_path):
    drawn = {}
    for write in (write_fullrank, write_loo_neg, write_loo_full):
        write(tmp_path)
        split = read_split(tmp_path, "test")
        folder = tmp_path / write.__name__
        write_data_folder(split.train, folder, rule=split.rule)
        rule = InteractionStore.open(folder / "store").split
        drawn[split.protocol] = (rule.split, rule.order)
    assert drawn == {
        "fullrank": ("random", "none"),
        "loo_neg": ("random", "none"),
        "loo_full": ("last_out", "file"),
    }


def test_features_are_read_from_the_files_that_are_there(tmp_path):
    write_loo_neg(tmp_path)
    (tmp_path / "items.csv").write_text("item,title,genres\n1,b,Comedy|War\n0,a,War\n2,c,Comedy\n")
    (tmp_path / "users.csv").write_text("user,genres,zip\n0,F,1\n1,M,56\n3,M,2\n2,F,1\n")
    (tmp_path / "item2attributes.json").write_text('{"2": [7, 9], "0": [9, 7]}')
    split = read_split(tmp_path, "test")
    assert split.item_tokens == {
        "attributes": [["9", "7"], [], ["7", "9"]],
        "genres": [["War"], ["Comedy", "War"], ["Comedy"]],
    }
    assert split.user_tokens == {"user_genres": [["F"], ["M"], ["F"], ["M"]]}
    assert [note.split()[1] for note in split.notes] == ["title", "zip"]


def test_no_bag_is_cut_without_a_word(tmp_path):
    write_loo_neg(tmp_path)
    bag = [str(token) for token in range(MOST_TOKENS)]
    bags = {"0": bag, "1": bag[:30], "2": [*bag, "a", "b"]}
    (tmp_path / "item2attributes.json").write_text(json.dumps(bags))
    split = read_split(tmp_path, "test")
    assert split.item_tokens["attributes"] == [bag, bag[:30], bag]
    assert "2 of 160 tokens of attributes" in split.notes[0]


def test_sequences_without_the_events_are_refused(tmp_path):
    write_loo_full(tmp_path, "1 3 1 2 4\n2 2 3 2 1\n")
    with pytest.raises(ValueError, match="1 users, as for 2"):
        read_split(tmp_path, "test")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dataset": "gowalla_m1"}, "--data DIR"),
        ({"part": "valid"}, "--data DIR"),
        ({"dataset": "yelp", "data": True}, "gowalla_m1, ncf_ml1m"),
        ({"data": True, "set": ["train.epoch=1"]}, "Did you mean 'epochs'"),
        ({"data": True, "config": Path("nowhere.yaml")}, "nowhere.yaml"),
    ],
    ids=["no-folder", "no-folder-of-a-part", "data-set", "override", "config"],
)
def test_a_wrong_command_line_is_one_sentence(tmp_path, options, sentence):
    write_fullrank(tmp_path)
    if options.get("data"):
        options = {**options, "data": tmp_path}
    with pytest.raises(SystemExit) as ended:
        quality.main(**options)
    assert sentence in str(ended.value.code)


@pytest.mark.bench
def test_any_folder_is_trained_on_and_measured_and_its_vectors_kept(tmp_path):
    write_fullrank(tmp_path)
    (tmp_path / "own.yaml").write_text("model: {dim: 4, history: 2}\ntrain: {epochs: 9}\n")
    words = ["--data", tmp_path, "--config", tmp_path / "own.yaml", "--seeds", "2"]
    words += ["--vectors", tmp_path / "v.npz"]
    words += ["--set", "train.epochs=1", "train.batch_size=2", "train.uniform_negatives=1"]
    command = [sys.executable, "-m", "benchmarks.quality", *map(str, words)]
    environment = {**os.environ, "XLA_FLAGS": ""}  # One device, which any batch divides by.
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    lines = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert all(line["n_runs"] == 2 for line in lines.values())
    split = read_split(tmp_path, "test")
    of_seeds = []
    for name in ("v.npz", "v-1.npz"):
        with np.load(tmp_path / name) as vectors:
            of_seeds.append(measure(split, vectors["user"], vectors["item"]))
    for name in of_seeds[0]:
        ends = [lines[name]["min"], lines[name]["max"]]
        assert sorted(metrics[name] for metrics in of_seeds) == pytest.approx(ends, abs=1e-5)
    assert "3 users, 4 items, 5 training events without an order" in done.stderr
    assert "\nseed 1\n" in done.stderr


# --- the data folder


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
