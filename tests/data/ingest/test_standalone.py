"""`ingest` and `open_data`: from raw files to data, without TFX."""

import json
import re

import numpy as np
import pytest

from recsys.config import (
    DataConfig,
    GateConfig,
    InteractionColumns,
    InteractionsConfig,
    ItemColumns,
    ItemsConfig,
    UserColumns,
    UsersConfig,
)
from recsys.data.catalogue import Catalogue
from recsys.data.config import read_event_feature
from recsys.data.dataset import open_data
from recsys.data.features import CategoriesFeature, WordsFeature
from recsys.errors import RecsysError, UsageError
from recsys.stages.ingest import ingest

pytestmark = pytest.mark.pipeline

DAY = 86_400
START = 1_700_006_400
COLUMNS = InteractionColumns(user="user", item="item", timestamp="time")


@pytest.fixture
def raw(tmp_path):
    rows = [f"u{n % 3},i{n % 4},{START + n * DAY}" for n in range(12)]
    text = "\n".join(["user,item,time", *rows, "u1,i1", rows[0]])
    (tmp_path / "events.csv").write_text(text + "\n")
    (tmp_path / "items.csv").write_text(
        "item,title,genres\ni0,Zero,a|b\ni1,One,b\ni2,<b>Two</b>,c|a|b\nnew,New,\n"
    )
    return tmp_path


def config(raw, **more):
    interactions = InteractionsConfig(files=str(raw / "events.csv"), columns=COLUMNS)
    gate = GateConfig(max_rejected_share=0.2)
    return DataConfig(interactions=interactions, eval_share=0.25, gate=gate, **more)


def items(raw, **more):
    columns = ItemColumns(item="item", title="title")
    return ItemsConfig(files=str(raw / "items.csv"), columns=columns, **more)


def test_the_data_hold_every_good_event_and_show_themselves(raw):
    data = ingest(config(raw, items=items(raw)), raw / "out", progress=False)
    assert data.counts == {
        "users": 3, "items": 5, "train_events": 9, "eval_events": 3,
        "read": 14, "good": 12, "rejected": 1, "duplicates": 1,
    }  # fmt: skip
    found = [(r["user_id"], r["item_id"], r["timestamp"]) for r in data.events("train").to_pylist()]
    assert sorted(found) == sorted((f"u{n % 3}", f"i{n % 4}", START + n * DAY) for n in range(9))
    assert set(data.titles) == {"", "Zero", "One", "<b>Two</b>", "i3", "New"}
    assert "9 to train on, 3 held out" in repr(data)
    assert "14 read = 12 good + 1 rejected + 1 duplicates" in data._repr_html_()
    assert (data.spec.user_rows, data.spec.item_rows, data.spec.features) == (4, 6, ())
    assert not list((raw / "out").glob("work"))
    assert repr(open_data(raw / "out", verify=True)) == repr(data)


def test_rows_stay_where_data_go_on_from_earlier_data(raw):
    first = ingest(config(raw), raw / "out", progress=False)
    text = (raw / "events.csv").read_text()
    (raw / "events.csv").write_text(text.replace("u0", "someone"))
    later = ingest(config(raw), raw / "later", previous=first, progress=False)
    assert later.users.rows(["u1", "u2"]).tolist() == first.users.rows(["u1", "u2"]).tolist()
    assert later.users.rows(["someone"]).tolist() == [4]


def test_an_item_that_left_the_data_keeps_its_row_and_is_no_candidate(raw):
    first = ingest(config(raw, items=items(raw)), raw / "out", progress=False)
    # i3 is in no file of items, new has no events.
    assert current(first) == {"i0", "i1", "i2", "i3", "new"}
    text = (raw / "events.csv").read_text()
    (raw / "events.csv").write_text(re.sub(r".*,(i1|i3),.*\n", "", text))
    (raw / "items.csv").write_text("item,title\ni0,Zero\nnew,New\n")
    later = ingest(config(raw, items=items(raw)), raw / "later", previous=first, progress=False)
    # i2 has only events; without a file of items, only events count.
    assert current(later) == {"i0", "i2", "new"}
    assert later.items.ids_of_rows.equals(first.items.ids_of_rows)
    # Rows stay if the store before is of an earlier version.
    manifest = json.loads((later.folder / "store" / "store.json").read_text())
    (later.folder / "store" / "store.json").write_text(json.dumps({**manifest, "format": 3}))
    bare = ingest(config(raw), raw / "bare", previous=later, progress=False)
    assert current(bare) == {"i0", "i2"}
    assert bare.items.ids_of_rows.equals(first.items.ids_of_rows)


def current(data):
    both = data.catalogue.ids, data.catalogue.is_item
    return {id_ for id_, is_item in zip(*both, strict=True) if is_item}


def test_features_of_events_are_in_the_data_and_their_tokens_keep_rows(raw):
    rows = [
        *(f"u{n % 3},i{n % 4},{START + n * DAY},{'view' if n % 3 else 'buy'}" for n in range(12)),
        # In one second another kind is another event, and the same kind a duplicate.
        f"u0,i0,{START},view",
        f"u0,i0,{START},view",
        f"u1,i1,{START + DAY},",
    ]
    (raw / "events.csv").write_text("\n".join(["user,item,time,kind", *rows]) + "\n")
    plain = config(raw)
    columns = COLUMNS.model_copy(update={"event": "kind"})
    features = (read_event_feature({"name": "action", "kind": "category", "column": "kind"}),)
    changed = {"columns": columns, "features": features}
    of_kinds = plain.interactions.model_copy(update=changed)
    with_kinds = plain.model_copy(update={"interactions": of_kinds})
    data = ingest(with_kinds, raw / "out", progress=False)
    assert (data.counts["good"], data.counts["rejected"], data.counts["duplicates"]) == (13, 1, 1)
    found = [
        (r["user_id"], r["item_id"], r["timestamp"], r["action"])
        for split in ("train", "eval")
        for r in data.events(split).to_pylist()
    ]
    expected = [row.split(",") for row in rows[:13]]
    assert sorted(found) == sorted((u, i, int(time), kind) for u, i, time, kind in expected)
    # The next night has a new kind, and one of before that is the most frequent now.
    more = [f"u2,i{n % 4},{START + n * DAY},{('buy', 'buy', 'cart')[n % 3]}" for n in range(12)]
    (raw / "events.csv").write_text("\n".join(["user,item,time,kind", *more]) + "\n")
    later = ingest(with_kinds, raw / "later", previous=data, progress=False)
    tokens = [one.feature.token_names(one.learned) for one in later.event_features]
    assert tokens == [["", "view", "buy", "cart"]]
    assert [(table.name, table.side, table.rows) for table in later.spec.features] == [
        ("action", "event", 4)
    ]


def test_an_earlier_result_is_replaced_and_nothing_else(raw):
    ingest(config(raw), raw / "out", progress=False)
    (raw / "out").rename(raw / ".out-replaced")  # As after a kill.
    for name in (f".out-{'0' * 12}", ".out-backup"):
        (raw / name).mkdir()
    with pytest.raises(RecsysError, match="missing"):
        ingest(config(raw).model_copy(update={"forget": "missing"}), raw / "out", progress=False)
    open_data(raw / "out")
    ingest(config(raw), raw / "out", progress=False)
    left = sorted(path.name for path in raw.iterdir())
    assert left == [".out-backup", "events.csv", "items.csv", "out"]
    with pytest.raises(UsageError, match=r"R223.*events\.csv"):
        ingest(config(raw), raw, progress=False)


def test_it_says_when_far_more_is_held_out_than_was_wanted(raw, capsys):
    wanted = config(raw).model_copy(update={"eval_share": 0.02})
    ingest(wanted, raw / "data")
    shown = " ".join(capsys.readouterr().out.split())
    assert "InteractionGen: 8.3% of the positives are held out" in shown


def test_too_many_rejected_rows_leave_no_data(raw):
    (raw / "events.csv").write_text((raw / "events.csv").read_text() + "u,i,never\n" * 9)
    with pytest.raises(RecsysError, match="R241"):
        ingest(config(raw), raw / "out", progress=False)
    assert sorted(path.name for path in raw.iterdir()) == ["events.csv", "items.csv"]


@pytest.mark.slow
def test_large_sides_have_a_job_each_and_the_same_features(raw, monkeypatch):
    transform = pytest.importorskip("recsys.data.ingest.transform")
    (raw / "users.csv").write_text("user,plan\nu0,free\nu1,paid\nu2,free\n")
    plan = CategoriesFeature(name="plan", column="plan")
    genres = CategoriesFeature(name="genres", column="genres")
    sides = {
        "items": items(raw, features=(genres,)),
        "users": UsersConfig(
            files=str(raw / "users.csv"), columns=UserColumns(user="user"), features=(plan,)
        ),
    }
    made = []
    for limit in (transform._LOCAL_BYTES, 0):
        monkeypatch.setattr(transform, "_LOCAL_BYTES", limit)
        out = raw / f"out-{limit}"
        data = ingest(config(raw, **sides), out, progress=False)
        of_items, of_users = data.catalogue.features, data.user_features
        made.append(
            [(f.name, [*f.tokens], np.asarray(f.bags).tolist()) for f in (*of_items, *of_users)]
        )
        assert not list(out.rglob(".transform-*"))
    assert [name for name, *_ in made[0]] == ["genres", "plan"]
    assert made[0] == made[1]


@pytest.mark.slow
def test_files_with_the_quirks_of_exports_are_read_whole(tmp_path):
    for day in range(1, 9):
        folder = tmp_path / "events" / f"dt=2024-01-{day:02}"
        folder.mkdir(parents=True)
        rows = "".join(f"u{n % 5}\u200b,{100 + (n + day) % 6}.0\n" for n in range(12))
        (folder / "part-0.csv").write_text("user,item\n" + rows)
    (tmp_path / "events" / "_SUCCESS").touch()
    (tmp_path / "events" / "_part-1.csv").write_text("user,item\nghost,ghost\n")
    versions = [f"{100 + n},The v{v},\"['g{v}', 'even']\",{v}" for v in (1, 2, 0) for n in range(6)]
    versions.append("106,The v2,last,9")  # Without events.
    (tmp_path / "items.csv").write_text("\n".join(["item,title,genres,v", *versions]) + "\n")
    interactions = InteractionsConfig(
        files=str(tmp_path / "events" / "**" / "*"),
        columns=InteractionColumns(user="user", item="item", timestamp="dt"),
        timestamp_unit="iso8601",
    )
    features = (
        CategoriesFeature(name="genres", column="genres"),
        WordsFeature(name="words", column="title", max_tokens=2),
    )
    catalogue = items(tmp_path, features=features, latest="v")
    data_config = DataConfig(interactions=interactions, items=catalogue, eval_share=0.2)
    data = ingest(data_config, tmp_path / "out", progress=False)
    assert data.counts["read"] == 96
    assert data.counts["users"] == 5
    assert set(data.titles) == {"", "The v2"}
    ids = {row["item_id"] for row in data.events("train").to_pylist()}
    assert ids == {str(100 + n) for n in range(6)}
    assert [*Catalogue.open(tmp_path / "out" / "catalogue").titles] == [*data.titles]
    genres = data.catalogue.features[0]
    bags = dict(zip(data.catalogue.ids, genres.bags, strict=True))
    names = {id_: [genres.tokens[t] for t in bag if t] for id_, bag in bags.items()}
    assert names == {"": [], "106": ["last"], **{id_: ["g2", "even"] for id_ in ids}}
    assert [(f.name, f.side, f.width) for f in data.spec.features] == [
        ("genres", "item", 8), ("words", "item", 2),
    ]  # fmt: skip
    assert json.loads((tmp_path / "out/ingest.json").read_text())["items"]["read"] == 19
    summary = json.loads((tmp_path / "out/dead_letters/items/summary.json").read_text())
    assert (summary["duplicates"], summary["conflicts"]) == (12, 12)
    told = json.loads((tmp_path / "out/dead_letters/interactions/summary.json").read_text())
    assert "_part-1.csv" in told["remarks"][0]
