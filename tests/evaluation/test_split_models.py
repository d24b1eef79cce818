"""Training, evaluation and serving of each split, compared with a plain reference."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from commands import run_main
from split_worlds import events, made_up, make, of_users, source, write

from recsys.config import (
    BlessConfig,
    EvaluateConfig,
    EvaluateStage,
    TrainConfig,
    TrainStage,
    TwoTowerConfig,
    ValidationConfig,
)
from recsys.data.dataset import seal_inputs
from recsys.data.hold_out import newest_share
from recsys.data.split import SplitRule
from recsys.data.store import serving_histories
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.evaluation.evaluation_file import evaluate
from recsys.models import ModelInputs
from recsys.tasks.retrieval.judging.queries import make_queries, protocol_of
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.epoch_work import held_back_queries
from recsys.tasks.training_side import training_events
from recsys.training.stage import train

pytestmark = pytest.mark.pipeline

LIKED = [(user, item, 5) for user, item, _ in made_up(120)]
STAGE = EvaluateStage(
    evaluate=EvaluateConfig(k=(3,), baselines=("popularity", "recent_popularity"), resamples=100),
    bless=BlessConfig(
        metric="recall@3",
        at_least=0.001,
        over={},
        over_blessed=0.0,
        over_strongest=0.0,
        sure_loss="allow",
    ),
)
TRAINED = TrainStage(
    model=TwoTowerConfig(dim=4, history=5, widths=(8,)),
    train=TrainConfig(batch_size=16, uniform_negatives=16, epochs=1),
)


@pytest.fixture(scope="module")
def unordered(tmp_path_factory):
    """A data folder split at random, without an order, and a model trained on it."""
    out = tmp_path_factory.mktemp("random")
    _, store = make(source(write(out / "a.csv", LIKED), "random"), out)
    train(TRAINED, out / "data", out / "model")
    return out, store


def row_of(out):
    """Returns the row of each item."""
    ids = Vocabulary.load(out / "data" / "vocabulary" / "items.parquet").ids_of_rows.to_pylist()
    return {item: row for row, item in enumerate(ids) if item is not None}


def plain(batch_size=16, **more):
    model = TwoTowerConfig(
        history=5, history_of="others", id_dropout=0.0, new_user_share=0.0, **more
    )
    return model, TrainConfig(batch_size=batch_size, known_positives=30, uniform_negatives=0)


def test_without_an_order_a_history_is_of_the_users_other_training_items(unordered):
    out, store = unordered
    rows, inputs = row_of(out), ModelInputs.open(out / "data")
    users = Vocabulary.load(out / "data" / "vocabulary" / "users.parquet")
    ids = users.ids_of_rows.to_pylist()
    trained = {
        user: {rows[item] for item in items}
        for user, items in of_users(events(out, store, "train")).items()
    }
    model, config = plain()
    batches = BatchSource(training_events(store.train, config), inputs.catalogue, model, config)
    n = 0
    for step in range(batches.steps_per_epoch):
        batch = batches[step]
        for name, values in batch.items():
            assert np.array_equal(values, batches[step][name])
        for user, item, history, known in zip(
            batch["user_row"], batch["item_row"], batch["history"], batch["known"], strict=False
        ):
            own, seen = trained[ids[user]], history[history > 0].tolist()
            assert item in own
            assert len(set(seen)) == len(seen) == min(5, len(own) - 1)
            assert set(seen) <= own - {item}
            assert set(known[known > 0].tolist()) == own
            n += 1
    assert n == batches.steps_per_epoch * 16


def test_a_training_of_data_without_an_order_takes_others(unordered):
    out, _ = unordered
    made = json.loads((out / "model" / "model.json").read_text())
    assert '"history_of": "others"' in json.dumps(made)


def test_each_user_is_asked_once_knowing_the_own_training_part(unordered):
    out, store = unordered
    assert protocol_of(store, None) == "at_cut"
    queries = make_queries(store, protocol_of(store, None))
    trained, held = (of_users(events(out, store, part)) for part in ("train", "eval"))
    rows = row_of(out)
    asked = store.eval_users.ids.to_pylist()
    assert [asked[user] for user in queries.user] == list(held)
    for user, seen, right in zip(held, *(_lists(queries, n) for n in ("seen", "positives")),
                                 strict=True):  # fmt: skip
        assert sorted(seen) == sorted(rows[item] for item in trained[user])
        assert set(right) == {rows.get(item, 0) for item in held[user]}
    assert queries.idle_s is None


def _lists(queries, name):
    lists = getattr(queries, name)
    return [
        lists.rows[a:b].tolist() for a, b in zip(lists.offsets, lists.offsets[1:], strict=False)
    ]


def test_the_evaluation_fits_the_split_and_says_what_it_means(unordered, tmp_path):
    out, store = unordered
    result = evaluate(STAGE, out / "model", out / "data", tmp_path)
    assert (result["query"], result["split"]["split"]) == ("at_cut", "random")
    assert "flatters" in result["meaning"]
    # There is no other protocol, and nothing is recent.
    assert not {"each_moment", "at_cut"} & set(result)
    assert "recent_popularity" in result["baselines_left_out"]
    assert not [one for one in result["slices"] if one["kind"] == "recency"]
    # Popularity by hand: rows are in the order of the counts.
    rows = row_of(out)
    trained, held = (of_users(events(out, store, part)) for part in ("train", "eval"))
    recalls = []
    for user, items in held.items():
        seen = {rows[item] for item in trained[user]}
        best = [row for row in sorted(rows.values()) if row not in seen][:3]
        recalls.append(np.mean([rows.get(item) in best for item in items]))
    figures = result["baselines"]["popularity"]
    assert figures["recall@3"] == pytest.approx(np.mean(recalls), abs=1e-6)
    assert result["users"] == len(held)


def test_a_model_of_another_split_is_not_measured(unordered, tmp_path):
    out, _ = unordered
    make(source(write(tmp_path / "a.csv", LIKED), "last_out", order="file"), tmp_path)
    with pytest.raises(RecsysError) as caught:
        evaluate(STAGE, out / "model", tmp_path / "data", tmp_path)
    assert caught.value.code == "R411"
    assert '"split": "random"' in str(caught.value)


def test_of_a_model_by_time_it_is_the_split_that_is_reported_and_not_the_cut(unordered, tmp_path):
    out, _ = unordered
    shutil.copytree(out / "model", tmp_path / "model")
    file = tmp_path / "model" / "vocabulary" / "items.parquet"
    items = Vocabulary.load(file)
    items.split, items.cut = SplitRule(), 1_700_000_000
    items.save(file)
    seal_inputs(tmp_path / "model")
    with pytest.raises(RecsysError, match=r"R411.*split as those that it is measured on"):
        evaluate(STAGE, tmp_path / "model", out / "data", tmp_path)


def test_an_order_that_is_not_there_can_not_be_asked_for(unordered, tmp_path):
    out, store = unordered
    with pytest.raises(RecsysError) as caught:
        protocol_of(store, "each_moment")
    assert caught.value.code == "R413"
    past = TRAINED.model_copy(update={"model": TwoTowerConfig(dim=4, history_of="past")})
    with pytest.raises(RecsysError) as caught:
        train(past, out / "data", tmp_path / "model")
    assert caught.value.code == "R336"


def test_a_training_continues_from_nothing_unless_split_by_time(unordered, tmp_path):
    out, _ = unordered
    summary = train(TRAINED, out / "data", tmp_path / "model", base=out / "model")
    assert "not split by time" in summary["cold"]


def test_data_without_days_are_not_simulated(tmp_path, capsys):
    write(tmp_path / "a.csv", LIKED)
    (tmp_path / "c.yaml").write_text(
        "{name: t, root: r, data: {split: random, interactions: {files: a.csv,"
        " columns: {user: user, item: item}}}}"
    )
    assert run_main("simulate-nights", tmp_path / "c.yaml", "--out", tmp_path / "out") == 2
    assert "R915" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_more_days_than_the_data_have_are_refused(tmp_path, capsys):
    rows = "".join(f"u{n % 7},i{n % 5},{10**9 + 86_400 * (n % 4)}\n" for n in range(80))
    (tmp_path / "a.csv").write_text(f"user,item,time\n{rows}")
    columns = "{user: user, item: item, timestamp: time}"
    (tmp_path / "c.yaml").write_text(
        f"{{name: t, root: r, data: {{interactions: {{files: a.csv, columns: {columns}}}}}}}"
    )
    command = ["simulate-nights", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out")]
    assert run_main(*command, "--by", "day", "--nights", "9") == 2
    assert "[R912]" in capsys.readouterr().err


def test_the_last_event_is_asked_for_from_all_before_it(tmp_path):
    _, store = make(source(write(tmp_path / "a.csv", LIKED), "last_out", order="file"), tmp_path)
    assert protocol_of(store, None) == "each_moment"
    queries = make_queries(store, "each_moment")
    rows, asked = row_of(tmp_path), store.eval_users.ids.to_pylist()
    before = of_users((user, item) for user, item, _ in LIKED)
    assert len(queries) == sum(len(items) > 1 for items in before.values())
    for user, seen, right in zip(queries.user.tolist(), _lists(queries, "seen"),
                                 _lists(queries, "positives"), strict=True):  # fmt: skip
        *earlier, last = [rows.get(item, 0) for item in before[asked[user]]]
        assert (seen, right) == (earlier, [last])


def test_validation_of_rows_in_order_holds_back_the_last_of_all_users(tmp_path):
    rows = [(f"u{user}", f"i{item}", 5) for user in range(40) for item in range(10)]
    _, store = make(source(write(tmp_path / "a.csv", rows), "last_out", order="file"), tmp_path)
    users = store.train.user_index(newest_share(store.train, 0.1))
    # Not all that the last users of the file did.
    assert len(set(users.tolist())) == len(users) == 36
    config = TrainConfig(validation=ValidationConfig(like="newest", share=0.1))
    assert len(training_events(store.train, config, store.split)) == 324
    # As the test part was drawn: the last of each.
    config = TrainConfig(validation=ValidationConfig())
    kept = training_events(store.train, config, store.split)
    assert kept.held.tolist() == [8 + 9 * user for user in range(40)]


def test_validation_asks_as_the_evaluation_of_such_a_part_does(unordered):
    """Random validation and a random split have the same kind of queries."""
    _, store = unordered
    config = TrainConfig(validation=ValidationConfig(share=0.3))
    events = training_events(store.train, config, store.split)
    queries = held_back_queries(events, plain()[0], 1000)
    asked = store.train.user_index(events.held)
    assert queries.user.tolist() == np.unique(asked).tolist()
    log = store.train
    kept = np.delete(np.arange(len(log)), events.held)
    for user, seen, right in zip(queries.user, _lists(queries, "seen"),
                                 _lists(queries, "positives"), strict=True):  # fmt: skip
        assert seen == log.item_row[kept[log.user_index(kept) == user]].tolist()
        assert right == np.unique(log.item_row[events.held[asked == user]]).tolist()


def test_a_training_validates_on_the_part_that_the_data_name(tmp_path):
    rows = [(*row, "valid" if n % 7 == 1 else "test" if n % 7 == 2 else "train")
            for n, row in enumerate(LIKED)]  # fmt: skip
    files = write(tmp_path / "a.csv", rows, "user,item,rating,part")
    config = source(files, "given", columns={"part": "part"}, valid_parts=("valid",))
    _, store = make(config, tmp_path)
    validation = ValidationConfig(metric="recall@10")
    stage = TRAINED.model_copy(
        update={"train": TRAINED.train.model_copy(update={"validation": validation})}
    )
    summary = train(stage, tmp_path / "data", tmp_path / "model")
    assert [look["step"] for look in summary["validation"]] == [summary["steps"]]
    # Rows without training events aren't trained: the held-out part reads row 0 instead.
    saved = Vocabulary.load(tmp_path / "model" / "vocabulary" / "items.parquet")
    kept = np.asarray(store.train.item_row)[~np.asarray(store.train.valid)]
    assert saved.row_counts.tolist() == np.bincount(kept, minlength=saved.n_rows).tolist()


def test_served_histories_are_in_the_order_of_the_events_over_both_parts(tmp_path):
    rows = [(f"u{user}", f"i{item}", 5) for user in range(30) for item in range(8)]
    _, store = make(source(write(tmp_path / "a.csv", rows), "random", order="file"), tmp_path)
    histories, names = serving_histories(store), row_of(tmp_path)
    assert len(store.eval)
    for place, user in enumerate(histories.ids):
        first, end = histories.offsets[place : place + 2]
        rows_of_user = histories.item_rows[first:end].tolist()
        assert rows_of_user == [names[f"i{item}"] for item in range(8)], user


def test_a_store_of_before_is_one_split_by_time(tmp_path):
    _, store = make(source(write(tmp_path / "a.csv", LIKED), "random"), tmp_path)
    manifest = tmp_path / "data" / "store" / "store.json"
    told = json.loads(manifest.read_text())
    for name in dataclasses.asdict(store.split):
        told.pop(name)
    manifest.write_text(json.dumps(told))
    again = type(store).open(manifest.parent)
    assert (again.split.split, again.split.order) == ("time", "time")
