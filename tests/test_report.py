"""The report says everything once, escapes all data, and survives what is missing."""

from __future__ import annotations

import copy
import html
import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.store import write_store
from recsys.data.vocabulary import Vocabulary
from recsys.report import write_report

SCRIPT = "<script>alert('pwned')</script>"

TITLES = [
    "Matrix, The (1999)", "Memento (2000)", "Fight Club (1999)", "Se7en (a.k.a. Seven) (1995)",
    "Toy Story (1995)", "Monsters, Inc. (2001)", "Finding Nemo (2003)", "Shrek (2001)",
    "Pulp Fiction (1994)", "Reservoir Dogs (1992)", "Kill Bill: Vol. 1 (2003)",
    "Jackie Brown (1997)", "Alien (1979)", "Aliens (1986)", "Terminator, The (1984)",
    "Blade Runner (1982)", "Titanic (1997)", "Notting Hill (1999)", "Amelie (2001)",
    "Lost in Translation (2003)", "Godfather, The (1972)", "Goodfellas (1990)", "Casino (1995)",
    "Scarface (1983)",
]  # fmt: skip

CONFIG: dict[str, Any] = {
    "name": "movielens-small",
    "root": "/work/runs/movielens-small",
    "data": {"interactions": {"files": "ratings.csv", "positive_at_least": 4.0}, "eval_share": 0.1},
    "model": {"dim": 64, "history": 20, "widths": [128], "temperature": 0.15},
    "train": {"batch_size": 256, "epochs": 12},
    "evaluate": {"k": [10, 50, 100], "query": "each_moment"},
    "bless": {
        "metric": "recall@10",
        "at_least": 0.05,
        "over_popularity": 1.1,
        "over_blessed": 0.95,
    },
}

METRICS = {
    "recall@10": 0.11804, "recall@50": 0.28712, "recall@100": 0.38911,
    "ndcg@10": 0.06143, "ndcg@50": 0.0982, "ndcg@100": 0.11471, "mrr": 0.05333,
}  # fmt: skip
POPULARITY = {
    "recall@10": 0.05391, "recall@50": 0.1497, "recall@100": 0.23214,
    "ndcg@10": 0.02804, "ndcg@50": 0.0488, "ndcg@100": 0.06213, "mrr": 0.02519,
}  # fmt: skip

EVALUATION: dict[str, Any] = {
    "query": "each_moment",
    "users": 80,
    "queries": 5051,
    "positives": 5056,
    "candidates": 9742,
    "metrics": METRICS,
    "baselines": {"popularity": POPULARITY},
    "blessed_model": {name: value * 0.97 for name, value in METRICS.items()},
    "slices": [
        {
            "name": name,
            "users": users,
            "queries": queries,
            "metrics": {name: value * factor for name, value in METRICS.items()},
            "baselines": {"popularity": POPULARITY},
        }
        for name, users, queries, factor in [
            ("users known to training", 28, 1210, 1.21),
            ("users new to training", 52, 3841, 0.94),
            ("items of the head", 79, 2214, 1.9),
            ("items without training events", 33, 102, 0.08),
        ]
    ],
    "at_cut": {
        "users": 80,
        "queries": 80,
        "metrics": {"recall@10": 0.0412, "ndcg@10": 0.1811, "mrr": 0.3021},
        "baselines": {"popularity": {"recall@10": 0.0301, "ndcg@10": 0.1502, "mrr": 0.2718}},
    },
    "coverage@10": 0.0871,
    "verdict": {
        "blessed": True,
        "reasons": [
            "recall@10 is 0.1180: at least the 0.0500 asked for",
            "recall@10 is 0.1180: at least 1.1 × 0.0539, which is that of popularity",
            "recall@10 is 0.1180: at least 0.95 × 0.1145, which is that of the last blessed model",
        ],
    },
    "examples": [
        {
            "user_id": user,
            "history": [
                {"id": str(i + 1), "title": TITLES[i]} for i in range(start, start + length)
            ],
            "recommended": [
                {
                    "id": str((start + i) % 24 + 1),
                    "title": TITLES[(start + i) % 24],
                    "score": 6.1 - 0.27 * i,
                    "held_out": i in hits,
                }
                for i in range(12, 22)
            ],
        }
        for user, start, length, hits in [
            ("1", 0, 12, {13, 17}),
            ("42", 4, 9, {12}),
            ("599", 12, 4, set()),
        ]
    ],
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
        }
        path = write_report(self.root / "report", **{**arguments, **changed})
        assert path == self.root / "report" / "report.html"
        return path.read_text(encoding="utf-8")

    def evaluate(self, **changed: Any) -> None:
        """Replaces parts of `evaluation.json`; None takes a part away."""
        path = self.evaluation / "evaluation.json"
        content = {**json.loads(path.read_text()), **changed}
        self.write_json(path, {key: value for key, value in content.items() if value is not None})

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
        "devices": 2,
        "platform": "cpu",
        "steps": 2040,
        "examples": 522_240,
        "seconds": 61.7,
        "examples_per_s": 8464.2,
    }


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that was blessed and pushed."""
    finished = Run(tmp_path)
    finished.write(TITLES, EVALUATION)
    return finished


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


def test_the_verdict_comes_first(run: Run) -> None:
    page = run.report()
    text = text_of(page.partition("</head>")[2].partition("<main>")[2].partition("</main>")[0])
    assert text.startswith("Run report · movielens-small")
    assert text.index("Blessed and pushed as version 7") < 100
    assert "recall@10 is 0.1180: at least 1.1 × 0.0539, which is that of popularity" in text
    assert re.search(r"<title>Blessed and pushed as version 7 · movielens-small</title>", page)


def test_figures_stand_beside_the_baseline(run: Run) -> None:
    text = text_of(run.report())
    assert "recall@10 0.118 2.19 × popularity 0.054" not in text  # three digits each
    assert "recall@10 0.118 2.19 × popularity 0.0539" in text
    assert "recall@50 0.287 0.150 1.92 × 0.279" in text
    assert "coverage@10 8.7 %" in text
    assert "80 users, 5,051 queries, 5,056 held-out events, 9,742 candidates" in text
    assert "Asked at the cut" in text
    assert "mrr 0.302 0.272 1.11 ×" in text


def test_only_the_chosen_protocol_decides_and_what_is_worse_is_marked(run: Run) -> None:
    page = run.report()
    assert page.count(">decides<") == 1
    assert re.findall(r'class="number worse">(.*?)</td>', page) == [
        "0.18\N{NO-BREAK SPACE}×",
        "0.400",
    ]


def test_slices_of_few_users_are_flagged(run: Run) -> None:
    text = text_of(run.report())
    assert "users known to training few users 28 1,210 0.143 0.0539 2.65 ×" in text
    assert "users new to training 52 3,841" in text
    assert "fewer than 50" in text


def test_data_is_counted_and_dead_letters_are_shown(run: Run) -> None:
    text = text_of(run.report())
    assert "rows read 100,836 good 100,821 rejected 12 (< 0.1 %) duplicates removed 3" in text
    assert "positives 48,580" in text
    assert "rating is no number 11" in text
    assert "ratings.csv, line 100,017 42,1210,four,964982703" in text
    assert "split at 2016-05-19 training events 9,000 held-out events 1,000 (10.0 %)" in text
    assert "vocabulary of users 599 vocabulary of items 24 items without training events 2" in text


def test_the_last_files_are_listed_with_their_rows(run: Run) -> None:
    text = text_of(run.report())
    assert "/data/interactions-02.csv 102" in text
    assert "/data/interactions-13.csv 113 and 2 earlier files" in text
    assert "/data/interactions-01.csv" not in text


def test_drift_skew_and_anomalies_are_shown(run: Run) -> None:
    page = run.report()
    text = text_of(page)
    assert "90,000 rows in train, 10,000 rows in eval. Drift is the distance from the data" in text
    assert "event, split eval Unexpected value: share" in text
    rating = "rating train Jensen-Shannon 0.012 0.400 0.30"
    assert f"drift skew limit {rating} user_id train L-infinity 0.020 – none" in text
    assert "timestamp: it moves with time." in text
    assert "event text 25.0 % 2 different: view (90.0 %), buy (10.0 %)" in text
    assert "rating number – 0.5 … 3.5 … 5" in text
    assert "timestamp number – 1996-03-29 … 2007-05-06 10:50 UTC … 2018-09-24" in text


def test_bars_stand_for_the_counts(run: Run) -> None:
    page = run.report()
    heights = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="24.0" height="([\d.]+)"/>', page)
    assert heights == [
        ("0.0", "23.0", "1.0"),
        ("25.0", "24.0", "0.0"),
        ("50.0", "12.0", "12.0"),
        ("75.0", "0.0", "24.0"),
    ]


def test_tfdvs_pages_lie_beside_the_report(run: Run) -> None:
    page = run.report()
    name = "statistics-interactions-train-and-eval.html"
    assert f'<a href="{name}">train and eval</a>' in page
    assert (run.root / "report" / name).read_text() == "TFDV"


@pytest.mark.parametrize(
    ("drift", "skew", "said"),
    [
        (False, False, "There was no earlier data to compare with"),
        (True, False, "No earlier model was blessed, so no skew."),
    ],
)
def test_what_there_is_no_comparison_with_is_said(
    run: Run, drift: bool, skew: bool, said: str
) -> None:
    found = {**VALIDATION["interactions"], "earlier": {"drift": drift, "skew": skew}}
    run.write_json(run.validation / "verdict.json", {"interactions": found})
    assert said in text_of(run.report())


def test_the_growth_of_a_vocabulary_is_shown(run: Run) -> None:
    text = text_of(run.report())
    assert "new ids 12 kept their row 599 evicted 3 in recycled rows 2" in text
    assert "training events of unknown ids 0.4 % held-out events of unknown ids 2.1 %" in text
    assert "new alice, bob below min count eve" in text


def test_training_and_tables_are_shown(run: Run) -> None:
    page = run.report()
    text = text_of(page)
    assert (
        "steps 2,040 examples 522,240 time 1 min 2 s examples a second 8,464 devices 2 cpu" in text
    )
    assert "items 9,743 9,744 64 row 2 1.2 MB 19.5 kB" in text
    assert "makes nothing of the size of items." in text
    assert page.count("<svg viewBox") == 2
    assert page.count("<polyline") == 2


def test_hits_are_marked_in_the_recommendations(run: Run) -> None:
    page = run.report()
    assert page.count('class="hit"') == 3
    text = text_of(page)
    assert "User 1 2 hits of 10" in text
    assert "User 599 no hit" in text
    assert "and 2 earlier" in text


def test_neighbours_are_the_nearest_by_cosine(run: Run) -> None:
    part = run.report().partition('id="neighbours"')[2].partition("</section>")[0]
    cards = [
        re.findall(r"<h3>(.*?)</h3>|class=\"title\">(.*?)</span>", c)
        for c in part.split("<article")
    ]
    named = [[heading or title for heading, title in card] for card in cards[1:]]
    # The embeddings lie in six groups of four, in the order of the titles, and the
    # titles in the order of their counts.
    assert named[0][0] == "Matrix, The (1999)"
    assert set(named[0][1:4]) == set(TITLES[1:4])
    assert not {card[0] for card in named[1:]} & set(TITLES[:4])
    assert all(len(card) == 6 for card in named)


def test_versions_fingerprints_and_config_are_there(run: Run) -> None:
    text = text_of(run.report())
    assert "keras 3.15.1 tensorflow 2.21.0" in text
    assert "name: movielens-small" in text
    fingerprint = Vocabulary.load(run.model / "vocabulary" / "items.parquet").fingerprint()
    assert fingerprint in text
    assert "code " + "0123abcd" * 8 in text
    assert "files 2 size 3.8 MB largest difference from the trainer 8.3e-08" in text


def test_the_page_needs_nothing_from_outside(run: Run) -> None:
    page = run.report()
    parsed = Text(page)
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe", "object"}
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("href", "src", "xlink:href"):
            assert re.fullmatch(r"#.*|statistics-[a-z-]+\.html", attributes.get(name) or "#")
    assert "url(" not in page
    assert "@import" not in page
    ids = {attributes["id"] for _, attributes in parsed.tags if "id" in attributes}
    links = {str(attributes["href"]) for tag, attributes in parsed.tags if tag == "a"}
    assert {link[1:] for link in links if link.startswith("#")} <= ids


def test_everything_from_data_is_escaped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    evaluation = _poison(EVALUATION)
    titles = [title + SCRIPT for title in TITLES]
    run.write(titles, evaluation)
    run.config = _poison(CONFIG)
    run.pushed = "/serving/" + SCRIPT.replace("/", "")
    for folder in run.dead_letters.values():
        summary = _poison(json.loads((folder / "summary.json").read_text()))
        for key in ("by_reason", "examples", "read_by_file"):
            summary[key] = {name + SCRIPT: entry for name, entry in summary[key].items()}
        run.write_json(folder / "summary.json", summary)
    verdict = {"interactions": _poison(VALIDATION["interactions"])}
    verdict["interactions"]["splits"]["train"]["columns"][1]["kind"] = "number"
    run.write_json(run.validation / "verdict.json", verdict)
    run.write_json(run.validation / "diff.json", _poison(GROWTH))
    training = _poison(json.loads((run.model / "training.json").read_text()))
    run.write_json(run.model / "training.json", training)
    manifest = _poison(json.loads((run.bundle / "manifest.json").read_text()))
    manifest["files"] = {name + SCRIPT: entry for name, entry in manifest["files"].items()}
    run.write_json(run.bundle / "manifest.json", manifest)
    page = run.report()
    assert "<script" not in page
    assert html.escape(SCRIPT, quote=False).replace("'", "&#39;") in page
    assert "script" not in {tag for tag, _ in Text(page).tags}
    # Titles, users, slices, reasons, rows, tables, versions, config: all of them.
    assert page.count("&lt;script&gt;") > 100


def _poison(value: Any) -> Any:
    if isinstance(value, str):
        # The names that the report looks up must stay.
        return value if value in {*METRICS, "each_moment", "at_cut"} else value + SCRIPT
    if isinstance(value, list):
        return [_poison(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _poison(entry) for key, entry in value.items()}
    return value


@pytest.mark.parametrize(
    ("metrics", "blessed_model", "why"),
    [
        (0.031, None, "recall@10 is 0.0310, at least 0.0500 was asked for"),
        (0.055, None, "recall@10 is 1.02 × that of the popularity baseline, at least 1.10 ×"),
        (0.070, 0.100, "recall@10 is 0.70 × that of the last blessed model, at least 0.95 ×"),
    ],
    ids=["threshold", "popularity", "last-blessed"],
)
def test_a_refused_model_says_why(
    run: Run, metrics: float, blessed_model: float | None, why: str
) -> None:
    run.evaluate(
        metrics={**METRICS, "recall@10": metrics},
        blessed_model={"recall@10": blessed_model} if blessed_model else None,
        verdict={"blessed": False, "reasons": ["the evaluator's own words"]},
    )
    text = text_of(run.report(pushed=None))
    assert f"Refused: {why}" in text
    assert "the evaluator's own words" in text
    assert "what was served before is still served" in text
    assert text.count("Not pushed.") == 1


def test_a_refusal_for_reasons_unknown_to_the_report_gives_the_evaluators(run: Run) -> None:
    run.evaluate(verdict={"blessed": False, "reasons": ["moon phase", "tides"]})
    assert "Refused: moon phase Nothing was pushed" in (text := text_of(run.report(pushed=None)))
    assert "moon phase tides" in text


def test_a_pushed_but_refused_model_is_called_out(run: Run) -> None:
    run.evaluate(verdict={"blessed": False, "reasons": ["no"]})
    assert "Refused, and yet" in text_of(run.report())


def test_blessed_without_push_or_bundle(run: Run) -> None:
    text = text_of(run.report(pushed=None, bundle=None))
    assert "Blessed, not pushed" in text
    assert "The run exported no bundle." in text


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("evaluation", "The evaluation is not there: the run left no evaluation.json."),
        ("model", "The record of the training is not there"),
        ("model/candidates.npy", "The item embeddings can't be read"),
        ("model/catalogue", "The catalogue is not there"),
        ("model/vocabulary", "The item vocabulary is not there"),
        ("model/model.json", "keras 3.15.1 tensorflow 2.21.0"),
        ("data", "The interaction store is not there"),
        ("data/vocabulary", "vocabulary of users not there"),
        ("bundle", "The bundle's manifest is not there"),
        ("dead/items", "The summary of the items is not there"),
        ("validation/verdict.json", "The validation of the data is not there"),
        ("validation/diff.json", "The diff of the vocabularies is not there"),
    ],
)
def test_what_is_missing_is_said_in_words(run: Run, gone: str, said: str) -> None:
    path = run.root / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert said in text_of(run.report())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"slices": None}, "The evaluation holds no slices."),
        ({"slices": 7}, "This part can't be shown"),
        ({"at_cut": None}, "The evaluation holds one protocol only."),
        ({"examples": []}, "The evaluation holds no example users."),
        ({"examples": [{"user_id": "9", "history": [], "recommended": []}]}, "without history"),
        ({"unknown_report_users": ["x", "y"]}, "but unknown to the data: x, y."),
        ({"slices": [{"users": 3}]}, "This part can't be shown (KeyError: 'name')."),
        ({"metrics": None}, "The evaluation holds no metrics."),
        ({"metrics": ["recall@10"]}, "The evaluation holds no metrics."),
        ({"baselines": None}, "No popularity baseline was measured."),
        ({"blessed_model": None}, "There is no earlier blessed model to compare with."),
        ({"verdict": None}, "The evaluation came to no verdict."),
        ({"metrics": {"recall@10": float("nan")}}, "recall@10 – "),
    ],
)
def test_an_evaluation_with_holes_is_said_in_words(
    run: Run, changed: dict[str, Any], said: str
) -> None:
    run.evaluate(**changed)
    assert said in text_of(run.report())


@pytest.mark.parametrize(
    "name",
    [
        "evaluation/evaluation.json",
        "model/training.json",
        "model/candidates.npy",
        "model/model.json",
        "model/vocabulary/items.parquet",
        "model/catalogue/titles.parquet",
        "data/store/store.json",
        "data/vocabulary/items.parquet",
        "bundle/manifest.json",
        "dead/items/summary.json",
        "validation/verdict.json",
        "validation/diff.json",
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff garbage", b"[1, 2]"], ids=["empty", "bytes", "list"]
)
def test_a_damaged_file_never_stops_the_report(run: Run, name: str, content: bytes) -> None:
    (run.root / name).write_bytes(content)
    text_of(run.report())


def test_nothing_at_all_still_gives_a_report(tmp_path: Path) -> None:
    path = write_report(
        tmp_path / "new" / "folder",
        config={},
        dead_letters={},
        data=tmp_path,
        model=tmp_path,
        evaluation=tmp_path,
        bundle=None,
        pushed=None,
    )
    text = text_of(path.read_text())
    assert "No verdict" in text
    assert "The run named no dead letters." in text


def test_losses_that_are_no_numbers_are_said_and_not_drawn(run: Run) -> None:
    path = run.model / "training.json"
    training = json.loads(path.read_text())
    training["curve"][3]["loss"] = float("nan")
    run.write_json(path, training)
    page = run.report()
    assert "1 of the recorded losses are no numbers" in text_of(page)
    assert "nan" not in "".join(re.findall(r"<svg.*?</svg>", page, re.S))
    training["curve"] = []
    run.write_json(path, training)
    assert "The training left no loss curve." in text_of(run.report())
