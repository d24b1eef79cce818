# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0", "numpy>=2,<3"]
#
# [tool.uv]
# # torchrec asks for the CUDA build, whose files would mix with those of the CPU build.
# override-dependencies = ["fbgemm-gpu ; sys_platform == 'never'"]
# ///
"""TorchRec's fused tables: FBGEMM's TBE, whose backward applies row-wise Adagrad."""

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn
from torch.nn import functional

from benchmarks.peers.two_tower_case import INITIAL, LEARNING_RATE, TOWER_WIDTHS, Case, StepClock


def tower(dim: int) -> nn.Module:
    """Returns the dense layers of one side."""
    hidden, out = TOWER_WIDTHS
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, out))


def main() -> None:
    """Measures the case that the command line names."""
    case = Case.from_command()
    clock = StepClock(case)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(case.rows, case.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * 2,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=LEARNING_RATE,
        eps=1e-7,
    )
    tables.init_embedding_weights_uniform(-INITIAL, INITIAL)
    users, items = tower(case.dim), tower(case.dim)
    dense = [*users.parameters(), *items.parameters()]
    optimizer = torch.optim.Adagrad(dense, lr=LEARNING_RATE)
    for batch in clock.batches():
        ids = torch.from_numpy(batch.astype("int64"))
        n = ids.shape[1]
        rows = tables(ids.view(-1), torch.arange(2 * n + 1))  # [batch, 2 · dim]
        query, candidate = users(rows[:, : case.dim]), items(rows[:, case.dim :])
        loss = functional.cross_entropy(query @ candidate.T, torch.arange(n))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick(loss.item())
    state = 2 * case.rows * (case.dim + 1) * 4
    clock.report(state, ["torch", "fbgemm-gpu-cpu", "torchrec"])


if __name__ == "__main__":
    main()
