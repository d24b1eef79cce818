# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0", "numpy>=2,<3"]
#
# [tool.uv]  # torchrec requires the CUDA build, whose files would mix with the CPU build.
# override-dependencies = ["fbgemm-gpu ; sys_platform == 'never'"]
# ///
"""A DLRM over TorchRec's fused tables: FBGEMM's TBE, whose backward applies row-wise Adagrad."""

from typing import Any

import torch
from torch import nn

from benchmarks.measure import answer
from benchmarks.peers.dlrm_case import LEARNING_RATE, TABLES, examples, row_wise_bytes
from benchmarks.peers.dlrm_torch import Layers
from benchmarks.peers.two_tower_case import StepClock
from benchmarks.peers.two_tower_torch import step
from benchmarks.peers.two_tower_torchrec import fused_tables


def main(**case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose other fields `StepClock` takes."""
    clock, loss_of = StepClock(**case), nn.BCEWithLogitsLoss()
    tables = fused_tables(TABLES, clock, LEARNING_RATE)
    layers = Layers(clock.dim)
    optimizer = torch.optim.Adagrad(layers.parameters(), lr=LEARNING_RATE)
    for ids, numbers, label in examples(clock):
        places, n = torch.from_numpy(ids.astype("int64")), ids.shape[1]
        rows = tables(places.view(-1), torch.arange(TABLES * n + 1))
        logits = layers(rows.view(n, TABLES, clock.dim), torch.from_numpy(numbers))
        loss = loss_of(logits, torch.from_numpy(label))
        clock.tick(step(loss, optimizer))
    return clock.report(row_wise_bytes(clock), ["torch", "fbgemm-gpu-cpu", "torchrec"])


if __name__ == "__main__":
    answer(main)
