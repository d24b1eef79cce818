# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy>=2,<3"]
# ///
"""`torch.nn.EmbeddingBag(sparse=True)` with the optimizers that take sparse gradients."""

import numpy as np
import torch

from benchmarks.measure import answer
from benchmarks.peers.embedding_layer_case import EPSILON, INITIAL, LEARNING_RATE, take_turns


def main(ids: str, grads: str, rows: int, dim: int, optimizer: str) -> None:
    """Takes turns on a table, with ids `[batches, bags, length]` and gradients `[bags, dim]`."""
    weights = torch.full((rows, dim), INITIAL)
    layer = torch.nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True)
    if optimizer == "sgd":
        updates = torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE, foreach=False)
    else:
        updates = torch.optim.Adagrad(
            layer.parameters(), lr=LEARNING_RATE, eps=EPSILON, foreach=False
        )
    gradients = torch.from_numpy(np.load(grads))

    def step(bags: object) -> None:
        updates.zero_grad()
        layer(bags).backward(gradients)
        updates.step()

    take_turns(
        ids,
        lambda bags: torch.from_numpy(bags.astype("int64")),
        step,
        lambda: layer.weight.detach().numpy(),
        ["torch"],
    )


if __name__ == "__main__":
    answer(main)
