# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy>=2,<3"]
# ///
"""`torch.nn.EmbeddingBag(sparse=True)` with the optimizers that take sparse gradients."""

import numpy as np
import torch

from benchmarks.peers.embedding_layer_case import (
    EPSILON,
    INITIAL,
    LEARNING_RATE,
    Case,
    take_turns,
)


def main() -> None:
    """Takes turns on the case that the command line names."""
    case = Case.from_command()
    weights = torch.full((case.rows, case.dim), INITIAL)
    layer = torch.nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True)
    if case.optimizer == "sgd":
        optimizer = torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE, foreach=False)
    else:
        optimizer = torch.optim.Adagrad(
            layer.parameters(), lr=LEARNING_RATE, eps=EPSILON, foreach=False
        )
    grads = torch.from_numpy(np.load(case.grads))

    def step(ids: object) -> None:
        optimizer.zero_grad()
        layer(ids).backward(grads)
        optimizer.step()

    take_turns(
        case,
        lambda ids: torch.from_numpy(ids.astype("int64")),
        step,
        lambda: layer.weight.detach().numpy(),
        ["torch"],
    )


if __name__ == "__main__":
    main()
