"""Public data sets' shapes, as a new user brings them: from `recsys check` to a recommendation."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from data_shapes import WRITERS, write_amazon_reviews, write_lightgcn

pytest.importorskip("tfx", reason="needs the extra `pipeline`")
pytestmark = [pytest.mark.pipeline, pytest.mark.slow, pytest.mark.thorough]

# A small model, which must be pushed whatever sixty users prove about it.
SMALL = (
    "model.dim=16",
    "model.widths=[16]",
    "train.epochs=3",
    "evaluate.resamples=200",
    "bless={metric: auc, at_least: 0.2, over: {}, over_strongest: 0.0, sure_loss: allow}",
)
# It has no time, no order, no header, ragged lines, and files that name the parts.
# Nine in ten held-out events repeat an item: without them too few users are left to judge by.
OF_REPEATS = {write_amazon_reviews}
IN_TWO_PARTS = {write_lightgcn}


def recsys(*arguments: str, cwd: Path) -> str:
    """Returns what the command prints on stdout; it must succeed."""
    environment = {**os.environ, "XLA_FLAGS": ""}
    run = subprocess.run(
        [sys.executable, "-m", "recsys", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def check_words(write: Callable[[Path], list[Path]], folder: Path) -> list[str]:
    """Writes the files of a data set; returns the arguments of `recsys check` for them."""
    first, *others = [path.name for path in write(folder)]
    if write in IN_TWO_PARTS:
        return [first, *others]
    options = ("--items", "--users")
    return [first, *(word for pair in zip(options, others, strict=False) for word in pair)]


def known_user(root: Path) -> str:
    """Returns the id of a user that the run has trained on."""
    import pyarrow.parquet as pq

    vocabularies = sorted(root.glob("artifacts/VocabularyGen/vocabularies/*/users.parquet"))
    ids = pq.read_table(vocabularies[-1], columns=["id"])["id"].drop_null()
    return str(ids[0])


@pytest.mark.parametrize(
    "write", [pytest.param(write, id=write.__name__.removeprefix("write_")) for write in WRITERS]
)
def test_files_go_from_check_to_a_recommendation_without_a_word_of_config(write, tmp_path):
    words = check_words(write, tmp_path)
    understood = json.loads(recsys("check", *words, "--out", "c.yaml", "--json", cwd=tmp_path))
    overrides = [*SMALL, "repeats=include"] if write in OF_REPEATS else SMALL
    words = [word for override in overrides for word in ("--set", override)]
    printed = recsys("run", "c.yaml", *words, "--json", cwd=tmp_path)
    result = json.loads(printed.splitlines()[-1])
    assert result["blessed"]
    data = result["night"]["data"]["sources"]["interactions"]
    assert data["read"] == understood["rows"]
    assert data["read"] - data["rejected"] - data["duplicates"] == understood["good"]
    user = known_user(Path(result["bundle"]).parents[2])
    answer = json.loads(
        recsys("recommend", "--config", "c.yaml", "--user", user, "-k", "5", "--json", cwd=tmp_path)
    )
    ids = [item["id"] for item in answer["items"]]
    assert len(set(ids)) == 5
