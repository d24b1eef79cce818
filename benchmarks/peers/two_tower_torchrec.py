# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0", "numpy>=2,<3"]
#
# [tool.uv]  # torchrec requires the CUDA build, whose files would mix with the CPU build.
# override-dependencies = ["fbgemm-gpu ; sys_platform == 'never'"]
# ///
"""TorchRec's fused tables: FBGEMM's TBE, whose backward applies row-wise Adagrad."""

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch.nn import functional

from benchmarks.measure import answer
from benchmarks.peers.two_tower_case import INITIAL, LEARNING_RATE, StepClock
from benchmarks.peers.two_tower_torch import step, tower


def fused_tables(n: int, clock: StepClock, rate: float) -> Any:
    """Returns tables with an optimizer in their backward."""
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(clock.rows, clock.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * n,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=rate,
        eps=1e-7,
    )
    tables.init_embedding_weights_uniform(-INITIAL, INITIAL)
    return tables


def main(**case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose fields `StepClock` takes."""
    clock = StepClock(**case)
    tables = fused_tables(2, clock, LEARNING_RATE)
    users, items = tower(clock.dim), tower(clock.dim)
    dense = [*users.parameters(), *items.parameters()]
    optimizer = torch.optim.Adagrad(dense, lr=LEARNING_RATE)
    for batch in clock.batches():
        ids = torch.from_numpy(batch.astype("int64"))
        n = ids.shape[1]
        rows = tables(ids.view(-1), torch.arange(2 * n + 1))  # [batch, 2 · dim]
        query, candidate = users(rows[:, : clock.dim]), items(rows[:, clock.dim :])
        loss = functional.cross_entropy(query @ candidate.T, torch.arange(n))
        clock.tick(step(loss, optimizer))
    state = 2 * clock.rows * (clock.dim + 1) * 4
    return clock.report(state, ["torch", "fbgemm-gpu-cpu", "torchrec"])


if __name__ == "__main__":
    answer(main)
