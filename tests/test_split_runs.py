"""Whole runs of data without usable times, from `recsys check` to a recommendation."""

import json
import random

import pytest
import yaml

from recsys.cli import main

pytest.importorskip("tfx", reason="needs the extra `pipeline`")
pytestmark = [pytest.mark.pipeline, pytest.mark.slow, pytest.mark.thorough]


def run(*arguments):
    """Runs a command in this process and returns its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([*arguments])
    return caught.value.code or 0


def rows_in_order(n_users=60):
    """Returns rows (user, item); each user stays with one kind of items for a while."""
    chance = random.Random(3)
    rows = []
    for user in range(n_users):
        taste = chance.randrange(5)
        for _ in range(chance.randrange(6, 16)):
            taste = chance.randrange(5) if chance.random() < 0.2 else taste
            rows.append((f"u{user}", f"i{taste * 8 + chance.randrange(8)}"))
    return rows


def write_in_order(folder):
    text = "".join(f"{user},{item}\n" for user, item in rows_in_order())
    (folder / "a.csv").write_text(f"user,item\n{text}")
    return ["a.csv"]


def write_counts(folder):
    rows = sorted(set(rows_in_order()))
    text = "".join(f"{user},{item},{1 + n % 5}\n" for n, (user, item) in enumerate(rows))
    (folder / "a.csv").write_text(f"user,item,count\n{text}")
    return ["a.csv"]


def write_parts(folder):
    rows = sorted(set(rows_in_order()))
    parts = ("train", "train", "train", "test")
    text = "".join(f"{u},{i},{parts[n % 4]}\n" for n, (u, i) in enumerate(rows))
    (folder / "a.csv").write_text(f"user,item,part\n{text}")
    return ["a.csv"]


def write_two_files(folder):
    rows = sorted(set(rows_in_order()))
    for name, which in (("train.csv", (1, 2, 3)), ("test.csv", (0,))):
        chosen = (f"{u},{i}\n" for n, (u, i) in enumerate(rows) if n % 4 in which)
        (folder / name).write_text("user,item\n" + "".join(chosen))
    return ["train.csv", "test.csv"]


@pytest.mark.parametrize(
    ("write", "split", "order", "query"),
    [
        (write_in_order, "last_out", "file", "each_moment"),
        (write_counts, "random", "none", "at_cut"),
        (write_parts, "given", "none", "at_cut"),
        (write_two_files, "given", "none", "at_cut"),
    ],
)
def test_data_without_times_go_from_check_to_a_recommendation(
    tmp_path, monkeypatch, capsys, write, split, order, query
):
    monkeypatch.chdir(tmp_path)
    assert run("check", *write(tmp_path), "--out", "c.yaml") == 0
    config = yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert config["data"]["split"] == split
    config |= {
        "root": "run",
        "model": {"dim": 8, "history": 5, "widths": [16]},
        "train": {"batch_size": 32, "epochs": 2, "validation": {"share": 0.1}},
        "evaluate": {"k": [5], "baselines": ["popularity"]},
        "bless": {
            "metric": "recall@5",
            "at_least": 0.001,
            "over": {},
            "over_blessed": 0.0,
            "over_strongest": 0.0,
            "sure_loss": "allow",
        },
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    capsys.readouterr()
    assert run("run", "c.yaml", "--json") == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    evaluation = json.loads(next(tmp_path.rglob("evaluation.json")).read_text())
    assert (evaluation["split"]["split"], evaluation["split"]["order"]) == (split, order)
    assert evaluation["query"] == query
    page = next(tmp_path.rglob("report.html")).read_text()
    assert evaluation["meaning"].split(":")[0] in page
    assert summary["blessed"]
    assert run("recommend", "--config", "c.yaml", "--user", "u1", "-k", "3", "--json") == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    taken = {item for user, item in rows_in_order() if user == "u1"}
    items = [item["id"] for item in answer["items"]]
    assert len(items) == 3
    assert not taken & set(items)
