# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "torch==2.13.0", "numpy>=2,<2.3", "pandas<2.3", "polars<2", "scikit-learn", "h5py", "tqdm",
#   "pyarrow", "pyyaml", "scipy", "keras_preprocessing",
# ]
# ///
"""FuxiCTR's DCNv2, whose code is in a clone of its repository."""

import copy
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import answer
from benchmarks.peers.rank_case import TEST, TRAIN, VALID, RankCase

GRID = {"embedding_regularizer": (1e-5, 1e-4), "dropout": (0.2, 0.5)}
WIDTHS, PATIENCE = [128, 64], 2


class Batches:
    """Batches of some rows as FuxiCTR reads them."""

    def __init__(self, case: RankCase, rows: np.ndarray) -> None:
        names = {name: torch.from_numpy(of[rows]) for name, of in case.tokens.items()}
        self._columns = {**names, "label": torch.from_numpy(case.label[rows])}
        self._n, self._shuffle, self._size = len(rows), False, 1024

    def shuffled(self) -> Any:
        """Returns the same in an order that is drawn anew each time."""
        other = copy.copy(self)
        other._shuffle = True
        return other

    def __len__(self) -> int:
        return -(-self._n // self._size)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = torch.randperm(self._n) if self._shuffle else torch.arange(self._n)
        for rows in order.split(self._size):
            yield {name: column[rows] for name, column in self._columns.items()}


def feature_map(case: RankCase, folder: str) -> Any:
    """Returns the features of a case as FuxiCTR describes them."""
    from fuxictr.features import FeatureMap

    features = FeatureMap("case", folder)
    features.labels = ["label"]
    for name, rows in case.tokens.items():
        spec: dict[str, Any] = {"type": "categorical", "source": "", "padding_idx": 0}
        if rows.ndim == 2:
            spec |= {"type": "sequence", "feature_encoder": "layers.MaskedAveragePooling()"}
            spec["max_len"] = rows.shape[1]
        features.features[name] = {**spec, "vocab_size": int(rows.max()) + 1}
    features.num_fields, features.default_emb_dim = len(case.tokens), 16
    return features


def build(features: Any, folder: str, regularizer: float, dropout: float, patience: int) -> Any:
    """Returns the model; with `patience` 0 it keeps its last weights."""
    from DCNv2.src.DCNv2 import DCNv2

    options: dict[str, Any] = {
        "feature_map": features, "optimizer": "adam", "loss": "binary_crossentropy",
        "learning_rate": 1e-3, "embedding_dim": 16, "embedding_regularizer": regularizer,
        "metrics": ["logloss"], "monitor": {"logloss": 1}, "monitor_mode": "min", "verbose": 0,
        "model_root": folder, "model_id": "DCNv2", "early_stop_patience": patience or 99,
        "save_best_only": bool(patience), "reduce_lr_on_plateau": bool(patience),
    }  # fmt: skip
    dnn = {"parallel_dnn_hidden_units": WIDTHS, "net_dropout": dropout}
    return DCNv2(**options, **dnn, model_structure="parallel", num_cross_layers=3)


def main(case: str, out: str, seed: int, source: str) -> dict[str, Any]:
    """Writes the probability of each row, of the settings that the valid part chose."""
    sys.path[:0] = [source, f"{source}/model_zoo"]
    from fuxictr.pytorch.torch_utils import seed_everything

    rows = RankCase.load(case)
    parts = (rows.is_in(TRAIN), rows.is_in(VALID), rows.part < TEST, rows.part <= TEST)
    train, valid, both, everything = (Batches(rows, np.flatnonzero(of)) for of in parts)

    def fitted(settings: tuple[float, float], on: Batches, epochs: int, patience: int) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "case").mkdir()
            seed_everything(seed)
            of = build(feature_map(rows, folder), folder, *settings, patience=patience)
            of.fit(on.shuffled(), epochs=epochs, validation_data=valid)
            return of

    found: dict[float, tuple[tuple[float, float], int]] = {}
    for settings in itertools.product(*GRID.values()):
        of = fitted(settings, train, 30, PATIENCE)
        found[of.evaluate(valid)["logloss"]] = settings, of._epoch_index + 1 - PATIENCE
    loss = min(found)
    settings, epochs = found[loss]
    of = fitted(settings, both, max(1, epochs), 0)
    np.save(out, of.predict(everything))
    return {"valid": loss, "settings": settings, "epochs": epochs}


if __name__ == "__main__":
    answer(main)
