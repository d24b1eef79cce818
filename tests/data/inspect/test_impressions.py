"""`recsys check`: lists of what was shown, columns of lists, vectors and wide rows."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checking import columns, found
from reading import read_interactions

from recsys.config.load import load_config
from recsys.data.interactions import drop_duplicates
from recsys.stages.ingest import ingest

NOW = 1_790_000_000
START = 1_600_000_000

pytestmark = pytest.mark.usefixtures("here")


def written():
    return load_config("out.yaml").data


def kept():
    """Returns the events that a run keeps."""
    return drop_duplicates(read_interactions(written().interactions, NOW).good)[0]


def shown(n=200):
    """Returns the items shown in each of `n` rows, five apart, and which were clicked."""
    chance = random.Random(0)
    for at in range(n):
        items = chance.sample(range(31), 5)
        yield at, f"U{at % 13}", START + 9000 * at, items, [int(k == at % 7) for k in range(5)]


def test_impressions_of_mind_are_read(capsys):
    rows = []
    for at, user, time, items, clicks in shown():
        history = " ".join(f"N{(at + k) % 31}" for k in range(at % 4))
        pairs = " ".join(f"N{item}-{click}" for item, click in zip(items, clicks, strict=True))
        rows.append(f"{at}\t{user}\t{time}\t{history}\t{pairs}\n")
    Path("b.tsv").write_text("".join(rows))
    Path("news.tsv").write_text("".join(f"N{k}\tnews\ttitle {k}\n" for k in range(36)))
    result = found(capsys, "b.tsv", "--items", "news.tsv")
    assert result["undecided"] == []
    assert columns(result) == {
        "user": "c2", "item": "c5.item", "timestamp": "c3", "impression": "c1",
    }  # fmt: skip
    assert (result["positive"], result["items"]["id"]) == ("c5_click", "c1")
    assert (result["rows"], result["good"], result["positives"]) == (1000, 1000, 144)
    events = kept()
    assert events["label"].to_numpy().sum() == 144
    assert events["shown_at"].to_pylist()[:6] == [0, 1, 2, 3, 4, 0]
    assert events["impression"].to_pylist()[:6] == ["0"] * 5 + ["1"]
    assert any("c4 holds lists" in sentence for sentence in result["remarks"])
    proposed = load_config("out.yaml")
    assert proposed.model.task == "ranking"
    kinds = [(one.kind, one.by) for one in proposed.data.interactions.features]
    assert {("mean", "user"), ("mean", "item"), ("last", "user")} < {*kinds}


def test_a_list_of_items_beside_a_list_of_labels_is_read(capsys):
    _, users, times, items, clicks = zip(*shown(), strict=True)
    table = {"user_id": users, "ts": times, "shown": items, "clicks": clicks}
    pq.write_table(pa.table(table), "f.parquet")
    result = found(capsys, "f.parquet")
    assert columns(result) == {"user": "user_id", "item": "shown", "timestamp": "ts"}
    assert result["explode"]["parallel"] == ["clicks"]
    assert (result["positives"], kept()["label"].to_numpy().sum()) == (144, 144)


@pytest.mark.pipeline
def test_rows_shown_keep_their_impression_and_position(here, capsys):
    rows = [
        f"{at},{user},{time},{item},{k},{click},{'web' if k < 3 else 'app'}"
        for at, user, time, items, clicks in shown()
        for k, (item, click) in enumerate(zip(items, clicks, strict=True))
    ]
    header = "request_id,user_id,timestamp,item_id,position,click,device"
    Path("f.csv").write_text("\n".join([header, *rows]) + "\n")
    result = found(capsys, "f.csv")
    assert columns(result) == {
        "user": "user_id", "item": "item_id", "timestamp": "timestamp",
        "impression": "request_id", "position": "position",
    }  # fmt: skip
    assert kept()["shown_at"].to_pylist()[:5] == [0, 1, 2, 3, 4]
    ingest(written(), here / "data", progress=False)
    stored = {
        name: np.concatenate([np.load(path) for path in here.rglob(f"rows/{name}.npy")])
        for name in ("label.click", "position", "feature.device")
    }
    assert (stored["label.click"] == 1).sum() == 144
    assert np.bincount(stored["position"]).tolist() == [200] * 5
    assert np.bincount(stored["feature.device"][:, 0]).tolist() == [0, 600, 400]
    found(capsys, "f.csv", "--map", "label=none")
    assert written().interactions.columns.impression is None
    assert load_config("out.yaml").model.task == "retrieval"


def test_of_several_labels_of_what_was_shown_the_most_frequent_is_of_positives(capsys):
    rows = [
        f"{at},{user},{time},{item},{click and at % 3 == 0:d},{click}"
        for at, user, time, items, clicks in shown()
        for item, click in zip(items, clicks, strict=True)
    ]
    header = "user_id,timestamp,item_id,purchased,click"
    Path("f.csv").write_text("\n".join([f"request_id,{header}", *rows]) + "\n")
    result = found(capsys, "f.csv")
    assert (result["undecided"], result["positive"]) == ([], "click")
    assert result["labels"]["purchased"]["given"] == "click"
    assert load_config("out.yaml").model.task == "ranking"
    without = [row.partition(",")[2] for row in rows]  # What retrieval learns must be said.
    Path("f.csv").write_text("\n".join([header, *without]) + "\n")
    assert "--map positive=click" in found(capsys, "f.csv")["try"]


def test_lists_of_as_many_numbers_are_vectors(capsys):
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    items = {"item_id": [f"i{k}" for k in range(30)], "embedding": [*vectors.tolist()]}
    pq.write_table(pa.table(items), "items.parquet")
    rows = [f"u{n % 20},i{n % 30},{START + 9000 * n}" for n in range(300)]
    Path("f.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    result = found(capsys, "f.csv", "--items", "items.parquet")
    (feature,) = result["items"]["features"]
    assert (feature["column"], feature["kind"], feature["width"]) == ("embedding", "vector", 8)
    assert written().items.features[0].length == 8


def test_wide_rows_of_criteo_lack_user_and_item(capsys):
    chance = random.Random(0)
    rows = []
    for _ in range(500):
        numbers = [str(chance.randrange(900)) for _ in range(13)]
        words = [f"{chance.randrange(5 + 9 * k):08x}f" for k in range(26)]
        rows.append("\t".join([str(chance.randrange(2)), *numbers, *words]) + "\n")
    Path("day_0").write_text("".join(rows))
    result = found(capsys, "day_0")
    (sentence,) = result["undecided"]
    assert "a label (c1), 13 numbers and 26 categories" in sentence
    assert "c40 (" in sentence
    assert (result["try"], result["config"]) == (None, None)
    result = found(capsys, "day_0", "--map", "user=c40,item=c30,timestamp=none")
    assert (result["positive"], len(result["features"])) == ("c1", 37)
    assert kept().num_rows == result["good"]
