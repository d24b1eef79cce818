"""A finished run on the disk, for the tests of the report and to look at it."""

from __future__ import annotations

import copy
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.stores import save_catalogue, write_store
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.report.run_report import write_report
from recsys.report.runs import RunRecord

CONFIG: dict[str, Any] = {
    "name": "movielens-small",
    "data": {"interactions": {"files": "ratings.csv", "positive_at_least": 4.0}},
    "train": {"batch_size": 256, "epochs": 12},
    "bless": {"metric": "recall@10", "over": {"popularity": 1.1, "item_knn": 1.0}},
}
LETTERS: dict[str, list[tuple[str, str, int, str]]] = {
    "interactions": [
        ("rating is no number", "/data/ratings.csv", 100_017, "42,1210,four,964982703"),
        ("timestamp is out of range", "/data/ratings.csv", 88, "599,318,5.0,0"),
    ],
    "items": [("id is empty", "/data/movies.csv", 512, ",Untitled (2001),Drama")],
}
_TIMES = {"min": 828_057_600, "median": 1_178_448_600, "max": 1_537_747_200, "bars": [3, 4]}
_COLUMNS = [
    {"name": "event", "kind": "text", "missing": 0.25, "unique": 2,
     "top": [["view", 0.9], ["buy", 0.1]]},
    {"name": "rating", "kind": "number", "missing": 0.0, "min": 0.5, "median": 3.5, "max": 5.0,
     "bars": [1, 0, 50, 100]},
    {"name": "timestamp", "kind": "number", "missing": 0.0, **_TIMES},
]  # fmt: skip
_COMPARED = ("kind", "column", "measure", "value", "limit", "note", "exceeds")
VALIDATION: dict[str, Any] = {
    "interactions": {
        "what": "interactions",
        "schema": "/run/SchemaGen/schema.pbtxt",
        "anomalies": [{"split": "eval", "column": "event", "text": "Unexpected value: share"}],
        "comparisons": [
            {"split": "train", **dict(zip(_COMPARED, values, strict=True))}
            for values in [
                ("drift", "rating", "Jensen-Shannon", 0.0123, 0.3, "", False),
                ("skew", "rating", "Jensen-Shannon", 0.4, 0.3, "", True),
                ("drift", "user_id", "L-infinity", 0.02, None, "", False),
                ("drift", "timestamp", "Jensen-Shannon", None, None, "it moves with time", False),
            ]
        ],
        "earlier": {"drift": True, "skew": True},
        "splits": {
            "train": {"rows": 90_000, "columns": _COLUMNS},
            "eval": {"rows": 10_000, "columns": []},
        },
        "pages": [{"file": "statistics-interactions-train.html", "title": "train"}],
    }
}
GROWTH: dict[str, Any] = {
    "users": {
        "new": 12, "kept": 599, "evicted": 3, "recycled": 2, "below_min_count": 7,
        "rows_before": 600, "rows_after": 610, "unknown_train_share": 0.004,
        "unknown_eval_share": 0.021,
        "examples": {"new": ["alice", "bob"], "evicted": [], "below_min_count": ["eve"]},
    }
}  # fmt: skip
STEPS = [
    ("InteractionGen", "cached", "cached: nothing changed", 0.06),
    ("DataGate", "ran", "first run", 0.11),
    ("Trainer", "ran", "its config changed: train.epochs 8 → 12", 61.7),
    ("Exporter", "ran", "its inputs `evaluation`, `model` changed", 17.3),
]


class Run:
    """A finished run on the disk, in the layout of docs/folders.md.

    Args:
        root: Folder to write into.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = copy.deepcopy(CONFIG)
        names = ("data", "model", "evaluation", "bundle", "validation")
        self.data, self.model, self.evaluation, self.bundle, self.validation = (
            root / name for name in names
        )
        self.dead_letters = {name: root / "dead" / name for name in LETTERS}
        self.record = root / "runs" / "2026-02-03T01-00-00.000000Z"
        self.pushed: str | None = "/work/runs/movielens-small/serving/movielens-small/7"

    def write(self, titles: list[str], evaluation: dict[str, Any]) -> None:
        """Writes every folder of the run."""
        rng = np.random.default_rng(0)
        ids = pa.array([str(i + 1) for i in range(len(titles))])
        counts = np.arange(len(titles), 0, -1) ** 2 // 2
        counts[-2:] = 0
        users = pa.array([str(i) for i in range(599)])
        bags = FeatureBags("genres", 4, np.zeros((len(titles) + 1, 2), np.int32))
        catalogue = Catalogue(["", *ids.to_pylist()], ["", *titles], (bags,))
        for folder in (self.data, self.model):
            (folder / "vocabulary").mkdir(parents=True)
            Vocabulary(users, np.ones(599, np.int64)).save(folder / "vocabulary" / "users.parquet")
            Vocabulary(ids, counts).save(folder / "vocabulary" / "items.parquet")
            save_catalogue(catalogue, folder / "catalogue")
        parts = (_events(rng, 600, 9_000), _events(rng, 80, 1_000))
        write_store(self.data / "store", 1_463_616_000, *parts)
        groups = np.repeat(np.eye(6, 16, dtype=np.float32), 4, axis=0)
        embeddings = groups + rng.normal(0, 0.08, groups.shape).astype(np.float32)
        embeddings = np.vstack([np.zeros((1, 16), np.float32), embeddings])
        np.save(self.model / "candidates.npy", embeddings)
        self.write_json(self.model / "model.json", {"versions": {"jax": "0.10.2"}})
        self.write_json(self.model / "training.json", _training(rng))
        self.write_json(self.evaluation / "evaluation.json", evaluation)
        files = {"saved_model.pb": {"size": 412_331}, "variables/data": {"size": 3_412_881}}
        manifest = {"files": files, "versions": {"tensorflow": "2.21.0"}, "max_difference": 8.3e-8}
        self.write_json(self.bundle / "manifest.json", manifest)
        self.write_json(self.validation / "verdict.json", VALIDATION)
        self.write_json(self.validation / "diff.json", GROWTH)
        (self.validation / "statistics-interactions-train.html").write_text("TFDV")
        for name, letters in LETTERS.items():
            self.write_json(self.dead_letters[name] / "summary.json", _summary(name, letters))
        record = RunRecord(self.record)
        record.start("movielens-small", [*(step[0] for step in STEPS), "Reporter"], 1_770_080_400.0)
        for step in STEPS:
            record.step(*step, 1_770_080_400.0)

    def report(self, **changed: Any) -> str:
        """Returns the page."""
        arguments: dict[str, Any] = {
            "config": self.config, "dead_letters": self.dead_letters, "data": self.data,
            "model": self.model, "evaluation": self.evaluation, "bundle": self.bundle,
            "pushed": self.pushed, "validation": self.validation,
            "vocabularies": self.validation, "record": self.record,
        }  # fmt: skip
        path = write_report(self.root / "report", **{**arguments, **changed})
        assert path == self.root / "report" / "report.html"
        return path.read_text(encoding="utf-8")

    def evaluate(self, **changed: Any) -> None:
        """Replaces parts of `evaluation.json`; None takes a part away."""
        path = self.evaluation / "evaluation.json"
        content = {**json.loads(path.read_text()), **changed}
        self.write_json(path, {key: value for key, value in content.items() if value is not None})

    def retrain(self, **changed: Any) -> None:
        """Replaces parts of `training.json`."""
        path = self.model / "training.json"
        self.write_json(path, {**json.loads(path.read_text()), **changed})

    @staticmethod
    def write_json(path: Path, content: Any) -> None:
        """Writes a JSON file, and its folder if there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def _events(rng: np.random.Generator, n_users: int, n: int) -> pa.Table:
    user, item = rng.integers(0, n_users, n), rng.integers(1, 24, n).astype(np.int32)
    ids = user.astype(str).tolist()
    return pa.table({"user_id": ids, "user_row": user.astype(np.int32), "item_row": item,
                     "timestamp": np.arange(n)})  # fmt: skip


def _summary(name: str, letters: list[tuple[str, str, int, str]]) -> dict[str, Any]:
    read, rejected, duplicates = {"interactions": (100_836, 12, 3), "items": (9_743, 1, 0)}[name]
    return {
        "read": read, "good": read - rejected - duplicates, "rejected": rejected,
        "duplicates": duplicates, "remarks": ["every rating counts as a positive"],
        "by_reason": {letters[0][0]: rejected},
        "examples": {reason: [{"file": file, "line": line, "row": row}]
                     for reason, file, line, row in letters},
        "read_by_file": {f"/data/{name}-{day:02}.csv": 100 + day for day in range(14)},
    }  # fmt: skip


def _training(rng: np.random.Generator) -> dict[str, Any]:
    steps = np.arange(1, 2041, 5)
    losses = 2.6 + 2.9 * np.exp(-steps / 500) + rng.normal(0, 0.06, len(steps))
    sizes = {"bytes_per_device": 1_247_232, "slot_bytes_per_device": 19_488}
    table = {"table": "items", "rows": 9_743, "padded_rows": 9_744, "placement": "row", "dim": 64,
             "shards": 2, **sizes}  # fmt: skip
    looks = [{"step": 170 * i, "recall@10": 0.13 - 0.01 * (i - 9) ** 2} for i in range(1, 13)]
    return {
        "curve": [{"step": int(s), "loss": float(x)} for s, x in zip(steps, losses, strict=True)],
        "sharding": [table], "validation": looks, "best_step": 1530,
        "step": {"tables": ["items"], "state_bytes": 2_000_000, "temporary_bytes": 30_000},
        "devices": 2, "platform": "cpu", "steps": 2040, "examples": 522_240, "seconds": 61.7,
        "examples_per_s": 8464.2,
    }  # fmt: skip


class Text(html.parser.HTMLParser):
    """Collects tags and visible text; every tag must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def text_of(page: str) -> str:
    """Returns the visible text, with single plain spaces."""
    return " ".join(" ".join(Text(page).words).replace("\N{NO-BREAK SPACE}", " ").split())


def cells_of(page: str) -> list[list[str]]:
    """Returns the texts of all cells of all tables, row by row."""
    rows = re.findall(r"<tr.*?>(.*?)</tr>", page, re.S)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S) for row in rows]
    return [[text_of(f"<div>{cell}</div>") for cell in row] for row in cells]
