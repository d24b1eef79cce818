"""A package that brings a model, an encoder, a loss and a metric of its own."""

from my_recsys_plugin import encoder, loss, metric, model

__all__ = ["encoder", "loss", "metric", "model"]
