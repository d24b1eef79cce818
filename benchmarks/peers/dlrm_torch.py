# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "numpy>=2,<3"]
# ///
"""A DLRM in PyTorch with sparse gradients: `nn.Embedding(sparse=True)` and Adagrad."""

from typing import Any

import torch
from torch import nn

from benchmarks.measure import answer
from benchmarks.peers.dlrm_case import BOTTOM, LEARNING_RATE, NUMBERS, TABLES, TOP, examples
from benchmarks.peers.two_tower_case import StepClock
from benchmarks.peers.two_tower_torch import step, table


class Layers(nn.Module):
    """The layers of a DLRM over rows `[batch, 26, dim]`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        n = TABLES + 1
        self.bottom = _mlp(NUMBERS, BOTTOM)
        self.top = nn.Sequential(_mlp(dim + n * (n - 1) // 2, TOP), nn.Linear(TOP[-1], 1))
        self.register_buffer("pairs", torch.tril_indices(n, n, offset=-1))

    def forward(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the logits `[batch]`."""
        bottom = self.bottom(numbers)
        vectors = torch.cat([bottom[:, None], rows], 1)
        square = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = square[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, pairs], 1))[:, 0]


def _mlp(width: int, widths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for out in widths:
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers)


def main(device: str, **case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose other fields `StepClock` takes."""
    clock, loss_of = StepClock(**case), nn.BCEWithLogitsLoss()
    tables = [table(clock.rows, clock.dim, device) for _ in range(TABLES)]
    layers = Layers(clock.dim).to(device)
    optimizers = [
        torch.optim.Adagrad(layers.parameters(), lr=LEARNING_RATE),
        torch.optim.Adagrad([of.weight for of in tables], lr=LEARNING_RATE, foreach=False),
    ]
    for ids, numbers, label in examples(clock):
        places, numbers, label = (torch.from_numpy(of).to(device) for of in (ids, numbers, label))
        rows = torch.stack([of(place) for of, place in zip(tables, places, strict=True)], 1)
        loss = loss_of(layers(rows, numbers), label)
        clock.tick(step(loss, *optimizers))
    return clock.report(clock.adagrad_bytes(), ["torch"])


if __name__ == "__main__":
    answer(main)
