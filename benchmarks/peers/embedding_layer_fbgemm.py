# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "numpy>=2,<3"]
# ///
"""FBGEMM's table-batched embeddings (TBE), whose backward is the optimizer."""

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks.measure import answer
from benchmarks.peers.embedding_layer_case import EPSILON, INITIAL, LEARNING_RATE, take_turns

OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def main(ids: str, grads: str, rows: int, dim: int, optimizer: str) -> None:
    """Takes turns on a table, with ids `[batches, bags, length]` and gradients `[bags, dim]`."""
    layer = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=OPTIMIZERS[optimizer],
        learning_rate=LEARNING_RATE,
        eps=EPSILON,
    )
    layer.init_embedding_weights_uniform(INITIAL, INITIAL)
    gradients = torch.from_numpy(np.load(grads))

    def prepare(bags_of: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        bags, length = bags_of.shape
        flat = torch.from_numpy(bags_of.reshape(-1).astype("int64"))
        return flat, torch.arange(0, bags * length + 1, length)

    def step(batch: object) -> None:
        layer(*batch).backward(gradients)

    def read_table() -> np.ndarray:
        [weights] = layer.split_embedding_weights()
        return weights.detach().numpy()

    take_turns(ids, prepare, step, read_table, ["torch", "fbgemm-gpu-cpu"])


if __name__ == "__main__":
    answer(main)
