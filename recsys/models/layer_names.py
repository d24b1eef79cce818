"""Names and seeds of a model's layers that don't depend on what else its process made."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator
from typing import Any

import keras

_OF_KERAS = {"_layers", "_metrics", "_tracker", "_inbound_nodes", "_outbound_nodes"}


@contextlib.contextmanager
def keras_seeds(seed: int) -> Iterator[None]:
    """Seeds Python's random numbers meanwhile, from which Keras takes the seeds of layers."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def name_attributes(layer: keras.layers.Layer) -> None:
    """Names the layers that a layer or a model holds by the attributes that hold them.

    Saved weights are found by the names of layers, and Keras numbers those of a process.
    """
    for name, value in list(vars(layer).items()):
        if name not in _OF_KERAS and not name.startswith("_self_"):  # As TensorFlow's are.
            _name_layers(name, value)


def _name_layers(name: str, value: Any) -> None:
    """Names the layers of an attribute, unless their maker named them."""
    if isinstance(value, list | tuple):
        for place, part in enumerate(value):
            _name_layers(f"{name}_{place}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            _name_layers(f"{name}_{key}", part)
    elif isinstance(value, keras.layers.Layer) and not value.built:
        if re.fullmatch(rf"{_snake_case(type(value).__name__)}(_\d+)?", value.name):
            value.name = name.strip("_")
        if isinstance(value, keras.Sequential):
            _name_layers("layer", value.layers)
        else:
            name_attributes(value)


def _snake_case(name: str) -> str:
    """Returns the name that Keras gives to a layer of a class."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
