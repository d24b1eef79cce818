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

from benchmarks.stores import write_store
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.report.run_report import write_report
from recsys.report.runs import RunRecord

CONFIG: dict[str, Any] = {
    "name": "movielens-small",
    "root": "/work/runs/movielens-small",
    "data": {"interactions": {"files": "ratings.csv", "positive_at_least": 4.0}, "eval_share": 0.1},
    "model": {"dim": 64, "history": 20, "widths": [128], "temperature": 0.15},
    "train": {"batch_size": 256, "epochs": 12},
    "evaluate": {"k": [1, 5, 10, 20, 50, 100], "query": "each_moment"},
    "bless": {
        "metric": "recall@10",
        "at_least": 0.05,
        "over": {"popularity": 1.1, "item_knn": 1.0},
        "over_blessed": 0.9,
    },
}

DEAD_LETTERS: dict[str, list[tuple[str, str, int, str]]] = {
    "interactions": [
        ("rating is no number", "/data/ratings.csv", 100_017, "42,1210,four,964982703"),
        ("rating is no number", "/data/ratings.csv", 100_231, "17,50,,964981247"),
        ("timestamp is out of range", "/data/ratings.csv", 88, "599,318,5.0,0"),
    ],
    "items": [("id is empty", "/data/movies.csv", 512, ",Untitled (2001),Drama")],
}


VALIDATION: dict[str, Any] = {
    "interactions": {
        "what": "interactions",
        "schema": "/run/artifacts/SchemaGen.Interactions/schema/5/schema.pbtxt",
        "anomalies": [{"split": "eval", "column": "event", "text": "Unexpected value: share"}],
        "comparisons": [
            {
                "kind": kind,
                "split": "train",
                "column": column,
                "measure": measure,
                "value": value,
                "limit": limit,
                "note": note,
                "exceeds": value is not None and limit is not None and value > limit,
            }
            for kind, column, measure, value, limit, note in [
                ("drift", "rating", "Jensen-Shannon", 0.0123, 0.3, ""),
                ("skew", "rating", "Jensen-Shannon", 0.4, 0.3, ""),
                ("drift", "user_id", "L-infinity", 0.02, None, ""),
                ("drift", "timestamp", "Jensen-Shannon", None, None, "it moves with time"),
            ]
        ],
        "earlier": {"drift": True, "skew": True},
        "splits": {
            "train": {
                "rows": 90_000,
                "columns": [
                    {
                        "name": "event",
                        "kind": "text",
                        "missing": 0.25,
                        "values": 67_500,
                        "unique": 2,
                        "top": [["view", 0.9], ["buy", 0.1]],
                    },
                    {
                        "name": "rating",
                        "kind": "number",
                        "missing": 0.0,
                        "values": 90_000,
                        "min": 0.5,
                        "median": 3.5,
                        "max": 5.0,
                        "bars": [1, 0, 50, 100],
                    },
                    {
                        "name": "timestamp",
                        "kind": "number",
                        "missing": 0.0,
                        "values": 90_000,
                        "min": 828_057_600,
                        "median": 1_178_448_600,
                        "max": 1_537_747_200,
                        "bars": [3, 4],
                    },
                ],
            },
            "eval": {"rows": 10_000, "columns": []},
        },
        "pages": [
            {"file": "statistics-interactions-train-and-eval.html", "title": "train and eval"}
        ],
    }
}

GROWTH: dict[str, Any] = {
    "users": {
        "new": 12,
        "kept": 599,
        "evicted": 3,
        "recycled": 2,
        "below_min_count": 7,
        "below_min_count_events": 9,
        "out_of_date": 0,
        "rows_before": 600,
        "rows_after": 610,
        "unknown_train_share": 0.004,
        "unknown_eval_share": 0.021,
        "examples": {"new": ["alice", "bob"], "evicted": [], "below_min_count": ["eve"]},
    }
}


STEPS = [
    ("InteractionGen", "cached", "cached: nothing changed", 0.06),
    ("ItemGen", "cached", "cached: nothing changed", 0.05),
    ("StatisticsGen.Interactions", "cached", "cached: an earlier run did the same", 0.07),
    ("DataGate", "ran", "first run", 0.11),
    ("VocabularyGen", "ran", "its code changed", 4.2),
    ("InteractionEncoder", "ran", "its input `vocabularies` changed (VocabularyGen ran again)",
     5.9),
    ("Trainer", "ran", "its config changed: train.epochs 8 → 12; its input `data` changed"
     " (InteractionEncoder ran again)", 61.7),
    ("LatestBlessed", "ran", "it runs every time", 0.02),
    ("RetrievalEvaluator", "ran", "its input `model` changed (Trainer ran again)", 14.6),
    ("Exporter", "ran", "its inputs `evaluation`, `model` changed (RetrievalEvaluator, Trainer ran"
     " again)", 17.3),
    ("Pusher", "ran", "its inputs `blessing`, `bundle` changed", 0.4),
]  # fmt: skip


class Run:
    """A finished run on the disk, in the layout of docs/architecture.md.

    Args:
        root: Folder to write into.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = copy.deepcopy(CONFIG)
        self.data, self.model = root / "data", root / "model"
        self.evaluation, self.bundle = root / "evaluation", root / "bundle"
        self.dead_letters = {name: root / "dead" / name for name in DEAD_LETTERS}
        self.validation = root / "validation"
        self.record = root / "runs" / "2026-02-03T01-00-00.000000Z"
        self.pushed: str | None = "/work/runs/movielens-small/serving/movielens-small/7"

    def write(self, titles: list[str], evaluation: dict[str, Any]) -> None:
        """Writes every folder of the run."""
        rng = np.random.default_rng(0)
        ids = pa.array([str(i + 1) for i in range(len(titles))])
        counts = np.arange(len(titles), 0, -1)[:, None] ** 2 // 2
        counts[-2:] = 0
        vocabularies = {
            "users": Vocabulary(pa.array([str(i) for i in range(599)]), np.ones(599, np.int64)),
            "items": Vocabulary(ids, counts[:, 0]),
        }
        bags = FeatureBags("genres", 4, np.zeros((len(titles) + 1, 2), np.int32))
        catalogue = Catalogue(["", *ids.to_pylist()], ["", *titles], (bags,))
        for folder in (self.data, self.model):
            (folder / "vocabulary").mkdir(parents=True)
            for name, vocabulary in vocabularies.items():
                vocabulary.save(folder / "vocabulary" / f"{name}.parquet")
            catalogue.save(folder / "catalogue")
        self._write_store(rng)
        groups = np.repeat(np.eye(6, 16, dtype=np.float32), 4, axis=0)
        embeddings = groups + rng.normal(0, 0.08, groups.shape).astype(np.float32)
        np.save(
            self.model / "candidates.npy", np.vstack([np.zeros((1, 16), np.float32), embeddings])
        )
        self.write_json(
            self.model / "model.json", {"versions": {"keras": "3.15.1", "jax": "0.10.2"}}
        )
        self.write_json(self.model / "training.json", _training(rng))
        self.write_json(self.evaluation / "evaluation.json", evaluation)
        files = {
            "saved_model.pb": {"size": 412_331, "sha256": "ab" * 32},
            "variables/variables.data-00000-of-00001": {"size": 3_412_881, "sha256": "cd" * 32},
        }
        manifest = {
            "files": files,
            "format": 1,
            "versions": {"keras": "3.15.1", "tensorflow": "2.21.0"},
        }
        self.write_json(
            self.bundle / "manifest.json",
            {**manifest, "code": "0123abcd" * 8, "max_difference": 8.3e-8},
        )
        self._write_dead_letters()
        self.write_json(self.validation / "verdict.json", VALIDATION)
        self.write_json(self.validation / "diff.json", GROWTH)
        (self.validation / "statistics-interactions-train-and-eval.html").write_text("TFDV")
        self._write_record()

    def report(self, **changed: Any) -> str:
        """Returns the page."""
        arguments: dict[str, Any] = {
            "config": self.config,
            "dead_letters": self.dead_letters,
            "data": self.data,
            "model": self.model,
            "evaluation": self.evaluation,
            "bundle": self.bundle,
            "pushed": self.pushed,
            "validation": self.validation,
            "vocabularies": self.validation,
            "record": self.record,
        }
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
        """Writes a JSON file, and its folder where there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    def _write_store(self, rng: np.random.Generator) -> None:
        def events(n_users: int, n: int) -> pa.Table:
            user = rng.integers(0, n_users, n)
            return pa.table(
                {
                    "user_id": user.astype(str).tolist(),
                    "user_row": user.astype(np.int32),
                    "item_row": rng.integers(1, 24, n).astype(np.int32),
                    "timestamp": np.arange(n),
                }
            )

        write_store(self.data / "store", 1_463_616_000, events(600, 9_000), events(80, 1_000))

    def _write_record(self) -> None:
        record = RunRecord(self.record)
        record.start("movielens-small", [*(step[0] for step in STEPS), "Reporter"], 1_770_080_400.0)
        for name, state, reason, seconds in STEPS:
            record.step(name, state, reason, seconds, 1_770_080_400.0)

    def _write_dead_letters(self) -> None:
        counts = {"interactions": (100_836, 12, 3), "items": (9_743, 1, 0)}
        for name, letters in DEAD_LETTERS.items():
            folder = self.dead_letters[name]
            folder.mkdir(parents=True)
            read, rejected, duplicates = counts[name]
            by_reason = {letter[0]: 1 for letter in letters}
            by_reason[letters[0][0]] += rejected - len(by_reason)
            summary: dict[str, Any] = {
                "read": read,
                "good": read - rejected - duplicates,
                "rejected": rejected,
                "duplicates": duplicates,
                "by_reason": by_reason,
                "examples": {
                    reason: [
                        {"file": file, "line": line, "row": row}
                        for other, file, line, row in letters
                        if other == reason
                    ]
                    for reason in by_reason
                },
            }
            if name == "interactions":
                summary["positives"] = 48_580
                summary["remarks"] = ["every rating counts as a positive"]
            files = [f"/data/{name}-{day:02}.csv" for day in range(14)]
            summary["read_by_file"] = {file: 100 + day for day, file in enumerate(files)}
            self.write_json(folder / "summary.json", summary)


def _training(rng: np.random.Generator) -> dict[str, Any]:
    steps = np.arange(1, 2041, 5)
    losses = 2.6 + 2.9 * np.exp(-steps / 500) + rng.normal(0, 0.06, len(steps))
    return {
        "curve": [{"step": int(s), "loss": float(x)} for s, x in zip(steps, losses, strict=True)],
        "sharding": [
            {
                "table": name,
                "rows": rows,
                "placement": "row",
                "padded_rows": rows + rows % 2,
                "dim": dim,
                "shards": 2,
                "bytes_per_device": (rows + rows % 2) * dim * 2,
                "slot_bytes_per_device": (rows + rows % 2) * 2,
            }
            for name, rows, dim in [
                ("users", 600, 64),
                ("items", 9_743, 64),
                ("genres", 21, 32),
                ("title_words", 2_207, 32),
            ]
        ],
        "step": {"tables": ["items"], "state_bytes": 2_000_000, "temporary_bytes": 30_000},
        "validation": [
            {"step": 170 * i, "recall@10": 0.13 - 0.09 * 0.6**i - 0.001 * (i > 9) * (i - 9)}
            for i in range(1, 13)
        ],
        "best_step": 1530,
        "devices": 2,
        "platform": "cpu",
        "steps": 2040,
        "examples": 522_240,
        "seconds": 61.7,
        "examples_per_s": 8464.2,
    }


class Text(html.parser.HTMLParser):
    """Collects tags and visible text, and that every tag is closed."""

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
    """Returns the visible text, with single spaces."""
    return " ".join(" ".join(Text(page).words).split())


def cells_of(page: str) -> list[list[str]]:
    """Returns the texts of all cells of all tables, row by row."""
    rows = re.findall(r"<tr.*?>(.*?)</tr>", page, re.S)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S) for row in rows]
    plain = [[text_of(f"<div>{cell}</div>") for cell in row] for row in cells]
    return [[text.replace("\N{NO-BREAK SPACE}", " ") for text in row] for row in plain]
