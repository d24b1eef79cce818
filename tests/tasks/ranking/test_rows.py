"""The inputs of a ranking model for rows of a store, against plain Python over the raw rows."""

import numpy as np
import pytest
from row_worlds import DAY, START, ingested, shown

from recsys.models.inputs import ModelInputs
from recsys.models.ranking_config import DcnV2Config
from recsys.tasks.ranking.rows import read_rows

LENGTH = 5
CONFIG = DcnV2Config(dim=8, history=LENGTH)


def padded(values):
    return (values[::-1] + [0] * LENGTH)[:LENGTH]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    rows = shown(n_users=25, n_items=12)
    return rows, ingested(tmp_path_factory.mktemp("rows"), rows, label_after="6h")


@pytest.mark.parametrize(("part", "state"), [("train", "live"), ("eval", "live"), ("eval", "cut")])
def test_rows_have_the_histories_and_labels_of_their_users(world, part, state):
    raw, data = world
    store, inputs = data.store, ModelInputs.of_data(data)
    log = store.train_rows if part == "train" else store.eval_rows
    numbers = np.random.default_rng(3).permutation(len(log))
    read = read_rows(store, part, numbers, inputs, CONFIG, state)
    users, items = (getattr(inputs, side).ids_of_rows.to_pylist() for side in ("users", "items"))
    rows_of = {id_: row for row, id_ in enumerate(items) if id_}
    names = {row: token for token, row in zip(("phone", "tv"), (1, 2), strict=True)}
    owner = getattr(store, f"{part}_users").ids.to_pylist()
    known_until = (store.cut if part == "train" else max(r.time for r in raw)) - 6 * 3600
    by_key = {(r.user, r.item, r.time): r for r in raw}
    seen = set()
    for at, number in enumerate(numbers.tolist()):
        user = owner[int(log.user_index(np.array([number]))[0])]
        time = int(log.timestamp[number])
        row = by_key[user, items[int(log.item_row[number])], time]
        until = min(time, store.cut) if state == "cut" else time
        past = [r for r in raw if r.user == user and r.time < until and r.click]
        past.sort(key=lambda r: (r.time, rows_of.get(r.item, 0)))
        rows = [rows_of.get(r.item, 0) for r in past]
        assert read["history"][at].tolist() == padded(rows)
        assert read["history.device"][at, :, 0].tolist() == padded(
            [["", "phone", "tv"].index(r.device) for r in past]
        )
        assert names.get(int(read["device"][at, 0]), "") == row.device
        assert users[read["user_row"][at]] in (user, None)
        is_known = row.time <= known_until
        click = read["label.click"][at]
        assert click == row.click if is_known else np.isnan(click)
        buy = read["label.buy"][at]
        assert buy == row.buy if is_known and row.click else np.isnan(buy)
        assert read["rate"][at] == pytest.approx(1.0 if row.click else 0.5)
        assert read["weight"][at] == row.weight
        assert read["position"][at] == row.position
        seen.add((user, row.impression, int(read["impression"][at])))
    groups = {(user, impression) for user, impression, _ in seen}
    assert len({number for *_, number in seen}) == len(seen) == len(groups)
    assert len(numbers) > 100


def test_rows_of_other_items_keep_their_query(world):
    _, data = world
    inputs, numbers = ModelInputs.of_data(data), np.arange(9)
    own = read_rows(data.store, "eval", numbers, inputs, CONFIG)
    items = np.arange(1, 10, dtype=np.int32)
    other = read_rows(data.store, "eval", numbers, inputs, CONFIG, item_row=items)
    assert other["id_row"].tolist() == np.where(inputs.items.row_counts[1:10], items, 0).tolist()
    assert other["history"].tolist() == own["history"].tolist()
    assert START < data.store.cut < START + 40 * DAY
