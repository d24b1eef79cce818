"""Exports as `python -m recsys.stages.export` does, then tries what must be refused."""

import contextlib
import dataclasses
import json
import multiprocessing
import resource
import runpy
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
from checked_here import CheckedHere

folder = Path(sys.argv[1])
data, bundle = folder / "data", folder / "bundle"
bundle.mkdir()  # TFX makes the folder before.
# Files that a kill has left.
(folder / ".bundle.partial" / "variables").mkdir(parents=True)
(folder / ".bundle.partial" / "variables" / "variables-0-0.index").write_bytes(b"half")
mock.patch("recsys.bundles.export.ParityProcess", CheckedHere).start()


def run_stage(out):
    sys.argv = ["recsys.stages.export", "--config", str(folder / "export.json")]
    sys.argv += ["--data", str(data), "--model", str(folder / "model"), "--out", str(out)]
    sys.argv += ["--transform", str(folder / "item_transform"), "--evaluation", str(folder)]
    sys.argv += ["--user-transform", str(folder / "user_transform")]
    runpy.run_module("recsys.stages.export", run_name="__main__")


def run_stage_alone(out):
    """In a process of its own: in one process, names in graphs count up."""
    process = multiprocessing.get_context("fork").Process(target=run_stage, args=[out])
    process.start()
    process.join()
    assert process.exitcode == 0


run_stage_alone(bundle)
older = shutil.copytree(bundle, folder / "second")
(older / "saved_model.pb").write_bytes(b"older")
(older / "gone").touch()
run_stage_alone(older)

from recsys.bundles.export import Sources, export  # noqa: E402
from recsys.bundles.parity_process import check_latency  # noqa: E402
from recsys.config import ExportStage  # noqa: E402
from recsys.config.load import load_stage  # noqa: E402
from recsys.data.store import InteractionStore, serving_histories  # noqa: E402
from recsys.data.vocabulary import Vocabulary  # noqa: E402
from recsys.errors import RecsysError  # noqa: E402
from recsys.savedmodel.parity import in_batches  # noqa: E402
from recsys.savedmodel.signatures import load_saved_model  # noqa: E402
from recsys.tasks.retrieval.serving.candidates import popularity_shares  # noqa: E402
from recsys.tasks.retrieval.serving.parity import (  # noqa: E402
    Answers,
    RetrievalReference,
    compare_scores,
)
from recsys.tasks.retrieval.serving.side import RetrievalServing  # noqa: E402
from recsys.tasks.serving.requests import raw_probes  # noqa: E402

stage = load_stage(folder / "export.json", ExportStage)
refused = {}


def attempt(name, out="refused", model=folder / "model", data=data, transform=None):
    with noted(name):
        export(stage, Sources(model, data, transform), folder / out)


@contextlib.contextmanager
def noted(name):
    try:
        yield
    except RecsysError as error:
        refused[name] = [error.code, str(error)]


def with_bent(name, bend):
    model = folder / f"bent-{name}"
    shutil.copytree(folder / "model", model)
    bend(model / name)
    return model


@contextlib.contextmanager
def no_room():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def shorten(path):
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - 4)


def open_with_stored_graph():
    """Returns the sources whose users' graph lies where `recsys.ingest` stores it."""
    stored = shutil.copytree(folder / "user_transform", data / "graphs" / "users")
    with mock.patch("recsys.tasks.serving.folders.emit") as told:
        opened = RetrievalServing(stage, Sources(folder / "model", data))
    shutil.rmtree(stored.parent)
    assert opened.users is not None
    assert opened.items is None
    assert [call.kwargs["text"][:40] for call in told.call_args_list] == [
        "the bundle takes no raw columns of items"
    ]
    return opened


def try_checks():
    """Runs the checks themselves, in this process: a process for each would take minutes."""
    model, probe = load_saved_model(bundle), np.load(folder / "model" / "probe.npz")
    items, users = (
        Vocabulary.load(bundle / "vocabulary" / f"{side}.parquet") for side in ("items", "users")
    )
    ids = raw_probes(users, items, probe["user_row"], probe["history"])
    histories = serving_histories(InteractionStore.open(data / "store"))
    popularity = popularity_shares(histories, items.has_id())
    opened = open_with_stored_graph()
    source = opened.reference().source
    reference = RetrievalReference(*ids, probe["query"], source, popularity)
    told = []
    assert reference.check(model, bundle, told.append) <= 1e-5
    assert len(told) == 3
    for name, row in (("candidate", 7), ("last candidate", items.n_rows - 1)):
        bent = shutil.copytree(bundle, folder / name)
        rows = np.load(bent / "item_embeddings.npy")
        rows[row, 2] += 2e-5
        np.save(bent / "item_embeddings.npy", rows)
        with noted(name):
            reference.check(model, bent, told.append)
    query = reference.query.copy()
    query[3, 1] += 2e-5
    with noted("query"):
        dataclasses.replace(reference, query=query).check(model, bundle, told.append)
    # The scores of the trainer would be others, though every embedding is its own.
    bent = dataclasses.replace(reference, query=-reference.query)
    recommend = model.signatures["recommend"]
    found = in_batches(lambda part: recommend(**reference._inputs(recommend, part)), 5)
    few = dataclasses.replace(bent, query=bent.query[:5], source=bent.source[:5])
    with noted("scores"):
        answers = [Answers.of("recommend", found, items)]
        compare_scores(answers, few, np.load(bundle / "item_embeddings.npy"), items.has_id())
    with noted("slow"):
        check_latency(model, reference, 1e-4)
    quick = check_latency(model, reference, 1e6)
    assert 0 < quick["p50"] <= quick["p99"]


try_checks()
attempt("short table", model=with_bent("weights/0.npy", shorten))
with no_room():
    attempt("full disk")
attempt("missing file", model=with_bent("training.json", Path.unlink))
attempt("no transform graph", transform=data)
other = shutil.copytree(data, folder / "other")
shutil.copy(data / "vocabulary" / "items.parquet", other / "vocabulary" / "users.parquet")
attempt("other data", data=other)
attempt("taken folder", out="data")
# A process of Keras on JAX would spend most of this file's time on imports.
with mock.patch("keras.config.backend", return_value="jax"):
    attempt("another backend")
apart = stage.export.model_copy(update={"vectors": "apart"})
side = RetrievalServing(stage.model_copy(update={"export": apart}), Sources(folder / "model", data))
assert "popular" in side.module().signatures()
(folder / "refused.json").write_text(json.dumps(refused))
