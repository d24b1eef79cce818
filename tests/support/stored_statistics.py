"""Computes statistics by `StoredStatistics` from stored states, and from given histories."""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from recsys.data.statistics import StatisticsState
from recsys.savedmodel.statistics import LabelledHistory, StoredStatistics


def main(folder):
    given = dict(np.load(folder / "given.npz"))
    module = StoredStatistics(StatisticsState.open(folder / "data", "newest"))
    labels = {name: given[name] for name in ("like", "seconds")}
    history = LabelledHistory(given["is_there"], labels, {"tags": given["history_tags"]})
    graph = tf.function(module, autograph=False)
    ask = given["user_row"], given["item_row"], {"tags": given["tags"]}
    stored, own = graph(*ask), graph(*ask, history)
    np.savez(folder / "stored.npz", **{name: x.numpy() for name, x in stored.items()})
    np.savez(folder / "own.npz", **{name: x.numpy() for name, x in own.items()})


main(Path(sys.argv[1]))
