"""Layers of rankers, with the same inputs and weights on JAX and TensorFlow."""

import sys
from pathlib import Path

import numpy as np
from keras import KerasTensor, ops

from recsys.models.experts import LabelTowers, MixtureOfExperts, ProgressiveExtraction
from recsys.models.interactions import BilinearFusion, CrossNetwork, DotInteraction, FeatureGate
from recsys.models.target_attention import CandidateBlock, TargetAttention

BATCH, DIM, LENGTH, CANDIDATES = 6, 8, 5, 4


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=(BATCH, *shape)).astype(np.float32)


def mask():
    """The first history is empty, and all positions have padding in some history."""
    is_event = np.random.default_rng(0).random((BATCH, LENGTH)) < 0.6
    is_event[0] = False
    return is_event


SEEN = (normal(LENGTH, DIM), mask())
LAYERS = {
    "dot": (DotInteraction, {}, (normal(7, DIM),)),
    "cross": (CrossNetwork, {"layers": 2}, (normal(DIM),)),
    "cross of a rank": (CrossNetwork, {"layers": 3, "rank": 2}, (normal(DIM),)),
    "gate": (FeatureGate, {}, (normal(DIM),)),
    "gate of a context": (FeatureGate, {"widths": (5,)}, (normal(DIM), normal(3))),
    "fusion": (BilinearFusion, {"units": 3, "heads": 2}, (normal(DIM), normal(6))),
    "target": (TargetAttention, {"widths": (7, 5)}, (normal(DIM), *SEEN)),
    "target, softmax": (
        TargetAttention,
        {"widths": (7,), "softmax": True, "activation": "sigmoid"},
        (normal(CANDIDATES, DIM), *SEEN),
    ),
    "candidates": (
        CandidateBlock,
        {"dim": DIM, "heads": 2, "width": 6, "dropout": 0.0},
        (SEEN[0], normal(CANDIDATES, DIM), SEEN[1]),
    ),
    "towers": (LabelTowers, {"labels": 3, "widths": (5,)}, (normal(3, DIM),)),
    "shared bottom": (LabelTowers, {"labels": 3}, (normal(DIM),)),
    "mmoe": (MixtureOfExperts, {"labels": 2, "experts": 3, "widths": (6, 4)}, (normal(DIM),)),
    "ple": (
        ProgressiveExtraction,
        {"labels": 2, "levels": 3, "own_experts": 1, "shared_experts": 3, "widths": (6, 4)},
        (normal(DIM),),
    ),
}


def made(name):
    """Returns a layer with its initial weights, and its inputs."""
    kind, options, inputs = LAYERS[name]
    layer = kind(name="layer", **options)
    inputs = [ops.convert_to_tensor(x) for x in inputs]
    layer(*(KerasTensor(x.shape, x.dtype.name) for x in inputs))  # Builds it, computes nothing.
    return layer, inputs


def built(name):
    """Returns a layer with random weights, and its inputs."""
    layer, inputs = made(name)
    for number, variable in enumerate(layer.weights):
        values = np.random.default_rng(number).normal(0, 0.5, variable.shape)
        variable.assign(values.astype(np.float32))
    return layer, inputs


def outputs(layer, inputs):
    """Returns the outputs as a list of arrays."""
    found = layer(*inputs)
    return [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]


def main(folder):
    """Runs graphs for any batch and any number of candidates, as exported ones are."""
    import tensorflow as tf  # Tests' own processes have Keras on JAX.

    found = {}
    for name in LAYERS:
        layer, inputs = built(name)
        shapes = [(None, *x.shape[1:]) for x in inputs]
        any_number = {(None, CANDIDATES, DIM): (None, None, DIM)}
        specs = [
            tf.TensorSpec(any_number.get(shape, shape), x.dtype)
            for shape, x in zip(shapes, inputs, strict=True)
        ]
        graph = tf.function(layer.__call__, input_signature=specs)
        for number, values in enumerate(outputs(graph, inputs)):
            found[f"{name}/{number}"] = values
    np.savez(folder / "outputs.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
