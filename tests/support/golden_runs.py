"""Runs of the pipeline as a user starts them, and what of them is visible from outside.

Nothing here imports the project: only its command line is started, and the files that
docs/ describe are read. Where a format on disk changes, `store_events` is the one reader
to change with it; the frozen digests stay, because they are of the content.
"""

import csv
import functools
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = ROOT / "data" / "ml-latest-small"
DAY_S = 86_400
NO_THRESHOLDS = {
    "metric": "auc",
    "at_least": 0.01,
    "over": {},
    "over_blessed": 0.0,
    "over_strongest": 0.0,
    "sure_loss": "allow",
}
SMALL = {
    "root": "run",
    "model": {"dim": 16, "feature_dim": 8, "history": 8, "widths": [32], "table_placement": "row"},
    "train": {"batch_size": 64, "epochs": 3},
    "evaluate": {"k": [5, 10], "resamples": 200},
    "bless": NO_THRESHOLDS,
    "export": {"k": 20},
}


def recsys(*words, devices=1, cwd=None, check=True):
    """Runs a command of the command line on so many CPU devices."""
    # Metrics of factors are frozen to the last digit: with the same kernels on every machine.
    own = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "OPENBLAS_CORETYPE": "Haswell",
    }
    run = subprocess.run(
        [sys.executable, "-m", "recsys", *map(str, words)],
        cwd=cwd,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not check or run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return run


# --- the data sets


def write_part(folder):
    """Writes the first 60 users of the shipped ratings, rows that are bad, and their films."""
    with (SHIPPED / "ratings.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    rows = [row for row in rows if int(row[0]) <= 60]
    bad = [["7", "", "4.0", "964982703"], ["7", "1", "x", "964982703"], ["7", "1", "4.0", "-5"]]
    films = {row[1] for row in rows}
    with (SHIPPED / "movies.csv").open(newline="") as file:
        titles, *all_films = csv.reader(file)
    for name, lines in {
        "ratings.csv": [header, *rows, rows[3], *bad],
        "movies.csv": [titles, *(film for film in all_films if film[0] in films)],
    }.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    shipped = yaml.safe_load((ROOT / "configs" / "movielens_small.yaml").read_text())
    data = shipped["data"]
    data["interactions"]["files"], data["items"]["files"] = "ratings.csv", "movies.csv"
    data["gate"] = {"max_rejected_share": 0.01}
    return {**SMALL, "name": "part", "data": data}


def write_jsonl(folder):
    """Writes clicks as JSON Lines, with every kind of feature of users and items."""
    chance = random.Random(11)
    clicks = {}
    while len(clicks) < 3_000:
        user, kind = chance.randrange(70), chance.choice(["view", "click", "buy"])
        item = chance.randrange(40) * 2 + user % 2
        clicks[user, item, 10**9 + chance.randrange(60 * DAY_S)] = kind
    rows = [
        {"who": {"id": f"ü{u}"}, "what": f"i{i}", "at": t, "kind": kind, "worth": 1 + i % 3}
        for (u, i, t), kind in clicks.items()
    ]
    rows += [rows[0], {"who": {}, "what": "i1", "at": 10**9, "kind": "buy"}, {"what": [1]}]
    items = [
        {"id": f"i{i}", "name": f"The thing no {i}", "tags": ["a", f"t{i % 7}"], "price": i * 1.5}
        for i in range(85)
    ]
    users = [
        {
            "id": f"ü{u}",
            "about": {"group": "even" if u % 2 == 0 else "odd"},
            "age": None if u % 9 == 0 else 20 + u % 50,
            "joined": f"20{u % 20:02}-0{1 + u % 9}-11",
        }
        for u in range(75)
    ]
    for name, lines in {"clicks": rows, "items": items, "users": users}.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    data = {
        "interactions": {
            "files": "clicks.jsonl",
            "columns": {
                "user": "who.id", "item": "what", "timestamp": "at", "event": "kind",
                "weight": "worth",
            },
            "positive_events": ["click", "buy"],
        },
        "items": {
            "files": "items.jsonl",
            "columns": {"item": "id", "title": "name"},
            "features": [
                {"name": "tags", "column": "tags", "kind": "categories"},
                {"name": "words", "column": "name", "kind": "words", "max_tokens": 4},
                {"name": "price", "column": "price", "kind": "number", "buckets": 4},
            ],
        },
        "users": {
            "files": "users.jsonl",
            "columns": {"user": "id"},
            "features": [
                {"name": "group", "column": "about.group", "kind": "category"},
                {"name": "age", "column": "age", "kind": "number", "buckets": 3},
                {"name": "joined", "column": "joined", "kind": "date", "buckets": 2},
            ],
        },
        "vocabulary": {"users": {"hash_buckets": 3}, "items": {"min_count": 2, "hash_buckets": 4}},
        "eval_share": 0.2,
    }  # fmt: skip
    return {**SMALL, "name": "jsonl", "data": data, "repeats": "include"}


def write_untimed(folder):
    """Writes users and items without a header, times or ratings, in the order they came."""
    chance = random.Random(3)
    lines = []
    for user in range(80):
        taste = chance.randrange(5)
        for _ in range(chance.randrange(6, 16)):
            taste = chance.randrange(5) if chance.random() < 0.2 else taste
            lines.append(f"u{user},i{taste * 8 + chance.randrange(8)}\n")
    (folder / "events.csv").write_text("user,item\n" + "".join(lines))
    data = {
        "interactions": {
            "files": "events.csv",
            "columns": {"user": "user", "item": "item"},
            "order": "file",
        },
        "split": "last_out",
    }
    return {**SMALL, "name": "untimed", "data": data}


def write_shipped(folder):
    """Returns the shipped config for a run in `folder`."""
    config = yaml.safe_load((ROOT / "configs" / "movielens_small.yaml").read_text())
    for part, name in {"interactions": "ratings.csv", "items": "movies.csv"}.items():
        config["data"][part]["files"] = str(SHIPPED / name)
    config["data"]["gate"]["schema_dir"] = str(ROOT / "configs" / "schemas" / "movielens_small")
    return {**config, "root": "run"}


WRITERS = {
    "part": write_part,
    "jsonl": write_jsonl,
    "untimed": write_untimed,
    "shipped": write_shipped,
}


# --- what is visible of a run


def make_run(case, folder):
    """Runs a case in an empty folder, which may be copied then."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(WRITERS[case](folder)))
    printed = recsys("run", config, "--json", cwd=folder).stdout
    (folder / "result.json").write_text(printed.splitlines()[-1])
    return GoldenRun(case, folder)


class GoldenRun:
    """A finished `recsys run`: its folders, and what its files hold."""

    def __init__(self, case, folder):
        self.case, self.folder = case, folder
        self.config = folder / "config.yaml"
        self.result = json.loads((folder / "result.json").read_text())
        self.root = folder / "run"
        (self.bundle,) = self.root.glob("serving/*/1")

    @property
    def data(self):
        """The data folder, which `recsys train --data` takes."""
        (manifest,) = self.root.glob("artifacts/**/store/store.json")
        return manifest.parent.parent

    def file(self, name):
        """Returns what the one JSON file of this name holds."""
        (path,) = self.root.glob(f"artifacts/**/{name}")
        return json.loads(path.read_text())

    def counts(self):
        """Returns rows read, rejected and duplicated by source, and why they were rejected."""
        reasons = {}
        for path in sorted(self.root.glob("artifacts/*/dead_letters/*/summary.json")):
            for reason, count in json.loads(path.read_text())["by_reason"].items():
                reasons[reason] = reasons.get(reason, 0) + count
        return {"sources": self.result["night"]["data"]["sources"], "reasons": reasons}

    def vocabularies(self):
        """Returns how many rows the vocabularies have, and a digest of their ids by row."""
        found = {}
        for kind in ("users", "items"):
            table = pq.read_table(self.bundle / "vocabulary" / f"{kind}.parquet")
            columns = (table["id"].to_pylist(), table["count"].to_pylist())
            found[kind] = {"rows": len(table), "digest": digest(zip(*columns, strict=True))}
        return found

    def store(self):
        """Returns how many events each part of the store has, and a digest of them."""
        found = {}
        for part in ("train", "eval"):
            events = store_events(self.data, part)
            found[part] = {"events": len(events), "digest": digest(events)}
        return found

    def evaluation(self):
        """Returns what `evaluation.json` says of the model and of the baselines."""
        evaluation = self.file("evaluation.json")
        kept = ("query", "split", "users", "queries", "positives", "candidates", "metrics")
        kept += ("intervals", "baselines")
        found = {name: evaluation[name] for name in kept}
        found["at_cut"] = (evaluation.get("at_cut") or {}).get("metrics")
        return found | {"blessed": self.result["blessed"]}

    def curve(self):
        return [[point["step"], point["loss"]] for point in self.file("training.json")["curve"]]

    def questions(self):
        """Returns users of the vocabulary as requests, a stranger with a history, and another."""
        ids = pq.read_table(self.bundle / "vocabulary" / "users.parquet")["id"].drop_null()
        users = sorted(ids.to_pylist())[:6]
        items = pq.read_table(self.bundle / "vocabulary" / "items.parquet")["id"].drop_null()
        some = sorted(items.to_pylist())[:2]
        return {
            "user_id": [*users, "nobody at all", "nobody else"],
            "history": [*([["", ""]] * len(users)), some, ["", ""]],
            "exclude_seen": [True] * (len(users) + 2),
        }

    @functools.cached_property
    def answers(self):
        """Returns what the pushed SavedModel answers in stock TensorFlow."""
        script = Path(__file__).with_name("ask_saved_model.py")
        run = subprocess.run(
            [sys.executable, script, self.bundle],
            input=json.dumps(self.questions()), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-4000:]
        return json.loads(run.stdout.splitlines()[-1])

    def frozen(self):
        """Returns all that is compared with `<case>.json`."""
        return {
            "counts": self.counts(),
            "vocabularies": self.vocabularies(),
            "store": self.store(),
            "curve": self.curve(),
            "evaluation": self.evaluation(),
            "answers": self.answers,
        }


def store_events(data, part):
    """Returns the events (user id, item id, time, weight) of a store's part, sorted.

    Reads both layouts of docs/store.md: a row in `item_row.npy` is an event or, if there is
    `item.npy`, an item of the segment.
    """
    vocabulary = pq.read_table(data / "vocabulary" / "items.parquet")["id"].to_pylist()
    folder = data / "store" / part
    events = []
    for shard in sorted(path.parent for path in folder.glob("*/offsets.npy")):
        arrays = {path.stem: np.load(path) for path in shard.glob("*.npy")}
        users = pq.read_table(next(iter([*shard.glob("users.parquet"), folder / "users.parquet"])))
        ids = np.asarray(users["id"].to_pylist(), object)
        if "place" in arrays:
            ids = ids[arrays["place"]]
            arrays["item_row"] = arrays["item_row"][arrays["item"]]
        user_ids = np.repeat(ids, np.diff(arrays["offsets"]))
        weights = arrays.get("weight", np.ones(len(user_ids), np.float32))
        rows = zip(user_ids, arrays["item_row"], arrays["timestamp"], weights, strict=True)
        events += [(u, vocabulary[i] or f"row {i}", int(t), float(w)) for u, i, t, w in rows]
    return sorted(events)


def digest(rows):
    """Returns a sha256 of rows of plain values."""
    return hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest()


def folder_digest(folder):
    """Returns a sha256 of names and bytes of all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert files
    made = hashlib.sha256()
    for path in files:
        made.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return made.hexdigest()
