# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy>=2,<3"]
# ///
"""PyTorch with sparse gradients: `nn.Embedding(sparse=True)` and Adagrad, which takes them."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.measure import answer
from benchmarks.peers.two_tower_case import INITIAL, LEARNING_RATE, TOWER_WIDTHS, StepClock


def table(rows: int, dim: int, device: str) -> nn.Embedding:
    """Returns a table whose gradients are sparse."""
    # From empty: nn.Embedding would first draw a normal table.
    weights = torch.empty(rows, dim, device=device).uniform_(-INITIAL, INITIAL)
    return nn.Embedding.from_pretrained(weights, freeze=False, sparse=True)


def tower(dim: int) -> nn.Module:
    """Returns the dense layers of one side."""
    hidden, out = TOWER_WIDTHS
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, out))


def step(loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> float:
    """Takes a training step; returns the loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def main(device: str, **case: Any) -> dict[str, Any]:
    """Returns the figures of a case on a device, whose other fields `StepClock` takes."""
    clock = StepClock(**case)
    user_rows, item_rows = (table(clock.rows, clock.dim, device) for _ in range(2))
    users, items = (tower(clock.dim).to(device) for _ in range(2))
    dense = [*users.parameters(), *items.parameters()]
    optimizers = [
        torch.optim.Adagrad([user_rows.weight, item_rows.weight], lr=LEARNING_RATE, foreach=False),
        torch.optim.Adagrad(dense, lr=LEARNING_RATE),
    ]
    for batch in clock.batches():
        user, item = torch.from_numpy(batch).to(device)
        query, candidate = users(user_rows(user)), items(item_rows(item))
        loss = functional.cross_entropy(query @ candidate.T, torch.arange(len(user), device=device))
        clock.tick(step(loss, *optimizers))
    return clock.report(clock.adagrad_bytes(), ["torch"])


if __name__ == "__main__":
    answer(main)
