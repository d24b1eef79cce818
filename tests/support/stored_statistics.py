"""Computes statistics by `StoredStatistics` from stored states, and from given histories."""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from statistic_worlds import LABELS

from recsys.data.label_config import LabelConfig
from recsys.data.statistics import StatisticsState
from recsys.savedmodel.statistics import LabelledHistory, StoredStatistics, labels_of_texts


def main(folder):
    given = dict(np.load(folder / "given.npz"))
    module = StoredStatistics(StatisticsState.open(folder / "data", "newest"))
    config = {name: LabelConfig(**options) for name, options in LABELS.items()}
    texts = {name: given[name].astype(object) for name in ("rating", "seconds")}
    labels = labels_of_texts(config, {name: tf.constant(x) for name, x in texts.items()})
    history = LabelledHistory(given["is_there"], labels, {"tags": given["history_tags"]})
    graph = tf.function(module, autograph=False)
    ask = given["user_row"], given["item_row"], {"tags": given["tags"]}
    stored, own = graph(*ask), graph(*ask, history)
    np.savez(folder / "stored.npz", **{name: x.numpy() for name, x in stored.items()})
    np.savez(folder / "own.npz", **{name: x.numpy() for name, x in own.items()})


main(Path(sys.argv[1]))
