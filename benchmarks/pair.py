"""`python -m benchmarks.pair`: lists of a pair, a retriever and `dcn_v2`, one client and batches.

The weights are random; shapes, files and signatures are real. `recsys serve` and the client share
this machine. Users are drawn at random; they have 20 events each, and items have two features. The
lines of a round:

- `p50`, `p99`: time of an answer for one user over HTTP: retrieve `--candidates` of `--items`
  items, and rank them [ms];
- `late`: answers that are the retriever's list, since the ranker took over 50 ms;
- `batch`: users of a file that are answered a second, in a process of its own [users/s];
- `share of GEMM`: floating-point operations of the ranker's layers in these answers, beside
  NumPy's products of matrices in the same process.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
from typer import Option

from benchmarks.measure import call, print_line, run
from benchmarks.serve import Server, quantile, running

_REQUESTS = 1000
_BATCH, _GEMM = 1024, 2048
_HISTORY, _EVENTS_OF_A_USER = 20, 20
_GENRES, _BRANDS, _GENRES_OF_AN_ITEM = 20, 1000, 2


def main(
    items: int = 100_000,
    users: int = 10_000,
    candidates: int = 500,
    seconds: Annotated[float, Option(help="Of each case.")] = 20.0,
    runs: int = 3,
    bundle: Annotated[Path | None, Option(help="A bundle of an earlier call, or where to.")] = None,
) -> None:
    """Measures a pair."""
    sizes = {"items": items, "users": users, "candidates": candidates}
    with tempfile.TemporaryDirectory() as name:
        made = bundle or Path(name) / "bundle"
        if not made.exists():
            environment = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
            call(make_bundle, environment, out=str(made), **sizes)
        folder = Path(name) / "serving" / "world"
        shutil.copytree(made, folder / "1")
        case = f"items={items} candidates={candidates} dcn_v2"
        with running(folder, users, case) as server:
            server.wait_for(1)
            server.ask(seconds=3)  # The first answers are slow.
            n_late = late(server)
            rounds = server.answers(runs, seconds=seconds, requests=_REQUESTS)
            for percent in (50, 99):
                values = [quantile(one["times_ms"], percent / 100) for one in rounds]
                server.print(f"p{percent}", values, "ms", "pair")
            server.print("late", [late(server) - n_late], "answers", "pair")
        batch = {"bundle": str(made), "n_users": users, "seconds": seconds}
        answered = [call(answer_batch, **batch).result for _ in range(runs)]
        rates = [one["users_per_s"] for one in answered]
        print_line("pair", f"batch {case}", rates, "users/s")
        print_line("pair", f"share of GEMM {case}", [one["share"] for one in answered], "")


def late(server: Server) -> float:
    """Returns how many lists so far were the retriever's, by the server's metrics."""
    text = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text
    counts = re.findall(
        r'^recsys_pair_lists_total\{.*order="(?:late|failed)".*\} (.*)$', text, re.M
    )
    return sum(map(float, counts))


# --- in processes of their own


def make_bundle(out: str, items: int, users: int, candidates: int) -> str:
    """Writes a bundle of random weights; runs with Keras on TensorFlow."""
    from benchmarks import worlds
    from recsys.bundles.export import Sources, export
    from recsys.config import ExportConfig, ExportStage, TrainStage, TwoTowerConfig
    from recsys.models import ModelInputs

    work = Path(out).parent / f"{Path(out).name}.work"
    write_data(work / "data", users, items)
    inputs = ModelInputs.open(work / "data")
    retriever = TrainStage(model=TwoTowerConfig(dim=64, history=8, widths=(64,)))
    worlds.write_model(work, retriever, inputs)
    write_ranker(work / "model", work / "data", inputs, candidates)
    stage = ExportStage(name="world", export=ExportConfig(k=100))
    export(stage, Sources(work / "model", work / "data"), Path(out))
    return out


def write_data(folder: Path, users: int, items: int) -> None:
    """Writes a data folder whose items have features, and whose events have the label `click`."""
    from benchmarks.public_splits import Csr, write_data_folder
    from recsys.data.event_features.feature import FOLDER, save_event_features
    from recsys.data.label_config import LabelConfig

    rng = np.random.default_rng(0)
    genres = rng.integers(_GENRES, size=(items, _GENRES_OF_AN_ITEM))
    tokens = {
        "genres": [[f"g{number}" for number in {*row}] for row in genres.tolist()],
        "brand": [[f"b{number}"] for number in rng.integers(_BRANDS, size=items).tolist()],
    }
    train = Csr.drawn(users, items, _EVENTS_OF_A_USER)
    write_data_folder(train, folder, tokens, first_id=1)
    labels = {"click": LabelConfig(column="click", at_least=1)}
    save_event_features(folder / FOLDER, [], labels=labels)


def write_ranker(pair: Path, data: Path, inputs: Any, candidates: int) -> None:
    """Writes the folder of a ranker that was never trained into a retriever's."""
    from recsys.config import TrainStage
    from recsys.models.dcn import DcnV2
    from recsys.pair.config import RankerConfig
    from recsys.pair.folder import RANKER, write_pair
    from recsys.tasks.model_folder import save_model
    from recsys.tasks.ranking.probe import PROBE
    from recsys.tasks.ranking.rows import model_inputs
    from recsys.tasks.raw_events import RawEvents

    options = {"model": {"type": "dcn_v2", "history": _HISTORY}, "labels": {"click": 1.0}}
    config = RankerConfig.model_validate({**options, "candidates": candidates}, strict=False)
    model = DcnV2(inputs.spec(config.learner))
    model.build()
    rng, n = np.random.default_rng(0), 200
    for variable in model.weights:
        variable.assign(0.1 * rng.standard_normal(variable.shape, np.float32))
    folder = pair / RANKER
    save_model(folder, model, TrainStage(model=config.learner, train=config.train), data)
    shutil.copyfile(pair / "training.json", folder / "training.json")
    read = {
        "user_row": rng.integers(1, inputs.users.n_rows, n, np.int32),
        "item_row": rng.integers(1, inputs.items.n_rows, n, np.int32),
        "history": rng.integers(1, inputs.items.n_rows, (n, _HISTORY), np.int32),
        "retriever": np.stack([rng.random(n), rng.normal(size=n), np.ones(n)], 1, dtype=np.float32),
    }
    joint = model.joint_scores(model.call(model_inputs(read, inputs, config.learner)))
    scores = {f"score.{name}": np.asarray(x) for name, x in joint.items()}
    times = np.zeros((n, _HISTORY + 1), np.int64)
    raw = RawEvents.drawn([], "timestamp", np.zeros(n, np.int64), times).arrays()
    arrays: dict[str, Any] = {**read, **scores, **raw}
    np.savez(folder / PROBE, **arrays)
    write_pair(folder, config)


def answer_batch(bundle: str, n_users: int, seconds: float) -> dict[str, float]:
    """Returns `users_per_s` of batches, and the `share` of the rate of matrix products."""
    import pyarrow as pa

    from recsys.serving.batch_file import USER, batch_answer
    from recsys.serving.recommendations import load_bundle

    pair: Any = load_bundle(bundle).retriever
    users = np.random.default_rng(0).integers(1, n_users, _BATCH)
    batch = pa.RecordBatch.from_pydict({USER: [f"u{number}" for number in users]})
    batch_answer(pair, batch.slice(0, 64), 10)
    gemm, done, started = gemm_rate(), 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        batch_answer(pair, batch, 10)
        done += len(batch)
    rate = done / (time.perf_counter() - started)
    work = Path(bundle).parent / f"{Path(bundle).name}.work" / "model" / "ranker" / "model.json"
    operations = rate * pair.n_candidates * operations_of_a_row(json.loads(work.read_text()))
    return {"users_per_s": rate, "share": operations / max(gemm, gemm_rate())}


def operations_of_a_row(summary: dict[str, Any]) -> int:
    """Returns the multiplications and additions of a ranker's layers for one candidate."""
    shapes = {one["path"]: one["shape"] for one in summary["variables"]}
    per_row = {path: x for path, x in shapes.items() if "/embedding" not in path}
    return sum(2 * int(np.prod(x)) for path, x in per_row.items() if path.endswith("kernel"))


def gemm_rate() -> float:
    """Returns the best rate of products of float32 matrices, of several [operations/s]."""
    a = np.ones((_GEMM, _GEMM), np.float32)
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        a @ a
        rates.append(2 * _GEMM**3 / (time.perf_counter() - started))
    return max(rates)


if __name__ == "__main__":
    run(main)
