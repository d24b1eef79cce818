"""Counts the weights of the towers, without tables, and the activations of a step."""

from __future__ import annotations

import itertools

from recsys.config import AttentionConfig, MeanConfig, SequenceConfig, TwoTowerConfig
from recsys.errors import UsageError
from recsys.models.spec import ModelSpec, Side

# The values before and after a layer's activation, and the gradients of both.
_OF_A_LAYER = 4


def two_tower_config(spec: ModelSpec) -> TwoTowerConfig:
    """Returns the config of two towers whose numbers are known.

    Raises:
        UsageError: The model, or its encoder, is another one (R347).
    """
    built_in = MeanConfig, AttentionConfig, SequenceConfig
    if not (isinstance(spec.config, TwoTowerConfig) and isinstance(spec.config.encoder, built_in)):
        raise UsageError(
            "R347",
            "A plan is made for two towers with a built-in encoder.",
            "Train the model to see what it needs; recsys plan doesn't know a plugin's numbers.",
            type(spec.config).__name__,
        )
    return spec.config


def n_tower_weights(spec: ModelSpec) -> int:
    """Returns the weights of both towers, the pooling and the temperature [floats]."""
    config = two_tower_config(spec)
    nobody = 0 if config.user_id else config.dim
    towers = sum(_n_layer_weights(_widths(spec, side)) for side in ("user", "item"))
    return towers + _n_pooling_weights(config) + nobody + config.learn_temperature


def n_activations(spec: ModelSpec, n_queries: int, n_candidates: int) -> int:
    """Returns what towers and pooling keep of a step, gradients included [floats].

    Args:
        spec: What the model is.
        n_queries: Queries of a device.
        n_candidates: Candidates of a device.
    """
    of_query, of_candidate = (sum(_widths(spec, side)) for side in ("user", "item"))
    towers = n_queries * of_query + n_candidates * of_candidate
    return _OF_A_LAYER * towers + n_queries * _n_pooling_activations(two_tower_config(spec))


def _widths(spec: ModelSpec, side: Side) -> list[int]:
    """Returns the widths of a tower, from its inputs to its output; one without layers has none."""
    config = two_tower_config(spec)
    if config.widths is None:
        return [config.dim]
    ids = 1 + config.user_id if side == "user" else 1
    read = ids * config.dim + sum(feature.dim for feature in spec.of_side(side))
    return [read, *config.widths, config.dim]


def _n_layer_weights(widths: list[int]) -> int:
    """Returns the weights of layers, of which the last one has no bias."""
    return sum(a * b for a, b in itertools.pairwise(widths)) + sum(widths[1:-1])


def _n_pooling_weights(config: TwoTowerConfig) -> int:
    dim, places = config.dim, config.history * config.dim
    if isinstance(config.encoder, MeanConfig):
        return config.history
    if isinstance(config.encoder, AttentionConfig):
        return places + dim * dim + dim
    width = config.encoder.width or dim
    norm, square = 2 * dim, dim * dim + dim
    feed_forward = dim * width + width + width * dim + dim
    return places + config.encoder.layers * (2 * norm + 4 * square + feed_forward) + norm


def _n_pooling_activations(config: TwoTowerConfig) -> int:
    """Returns what the pooling keeps of one history [floats]."""
    dim, length = config.dim, config.history
    if isinstance(config.encoder, MeanConfig):
        return 0
    if isinstance(config.encoder, AttentionConfig):
        # The items, what is inside the hyperbolic tangent, and the weighted items.
        return 2 * length * (4 * dim + 2)
    sequence = config.encoder
    # Norms, query, key, value, what was found, its map, the sum; the feed-forward layer.
    of_entry = 14 * dim + 3 * (sequence.width or dim)
    of_pairs = 4 * sequence.heads * length
    whole, last = length * (of_entry + of_pairs), length * 6 * dim + of_entry + of_pairs
    return 2 * ((sequence.layers - 1) * whole + last + 3 * length * dim)
