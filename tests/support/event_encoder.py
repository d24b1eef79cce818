"""Encodes the events in `values.json` with the graph of the event features in `features`."""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from recsys.data.event_features import load_event_features
from recsys.data.event_graphs import EventEncoder


def main(folder):
    values = json.loads((folder / "values.json").read_text())
    numbers = {
        name: np.array([[np.nan] * 3 if v is None else v for v in column], np.float32)
        if name == "picture"
        else np.array([np.nan if v is None else v for v in column], np.float32)
        for name, column in values.items()
    }
    encoder = EventEncoder(load_event_features(folder / "features"))
    graph = tf.function(encoder, autograph=False)
    made = graph({name: tf.constant(column) for name, column in numbers.items()})
    np.savez(folder / "encoded.npz", **{name: tensor.numpy() for name, tensor in made.items()})


main(Path(sys.argv[1]))
