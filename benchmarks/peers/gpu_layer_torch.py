# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.11", "numpy>=2,<3"]
# ///
"""`nn.EmbeddingBag(sparse=True)` on CUDA, with Adagrad and with SGD, which takes the least."""

import sys

import torch
from torch import nn

from benchmarks.measure import peak_rss_mib
from benchmarks.peers.gpu_layer_case import LEARNING_RATE, Case, Measured, copy_rate, timed_ms


class Run:
    """A table in training; a step is a lookup, its backward pass, and the optimizer's step."""

    def __init__(self, case: Case, kind: str, device: torch.device) -> None:
        self.sets = [torch.from_numpy(ids).to(device) for ids in case.read_ids()]
        n = self.sets[0].shape[0]
        self.offsets = torch.arange(n, device=device, dtype=torch.int32)
        weights = torch.empty(case.rows, case.dim, device=device).uniform_()
        self.bags = nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True)
        self.grads = torch.randn(n, case.dim, device=device) * 0.01
        optimizers = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
        self.optimizer = optimizers[kind](self.bags.parameters(), lr=LEARNING_RATE)

    def step(self, i: int) -> None:
        """Starts the i-th step."""
        out = self.bags(self.sets[i % len(self.sets)], self.offsets)
        self.optimizer.zero_grad(set_to_none=True)
        out.backward(self.grads)
        self.optimizer.step()


def copies_ms(case: Case, device: torch.device, wait: object) -> list[float]:
    """Returns the time of a copy of `case.copied_floats` [ms]."""
    source = torch.arange(case.copied_floats, dtype=torch.float32, device=device)
    return timed_ms(lambda _: source.clone(), wait, case)


def measured(case: Case, kind: str, device: torch.device, wait: object) -> list[float] | None:
    """Returns the time of a step with one optimizer [ms]; None if memory did not do."""
    try:
        return timed_ms(Run(case, kind, device).step, wait, case)
    except torch.OutOfMemoryError as error:
        print(f"{kind}: {error}", file=sys.stderr)
        return None


def main() -> None:
    """Measures the case that the command line names."""
    case = Case.from_command()
    is_cuda = torch.cuda.is_available()
    if not is_cuda and not case.on_cpu:
        sys.exit("PyTorch sees no GPU here: this needs its CUDA build.")
    device = torch.device("cuda" if is_cuda else "cpu")
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    copies = copies_ms(case, device, wait)
    step_ms = {}
    for kind in ("sgd", "adagrad"):
        found = measured(case, kind, device, wait)
        if found is not None:
            step_ms[kind] = found
        if is_cuda:
            torch.cuda.empty_cache()
    found = Measured(
        step_ms=step_ms,
        copy_gb_s=copy_rate(copies, case),
        peak_device_bytes=torch.cuda.max_memory_allocated() if is_cuda else 0,
        peak_rss_mib=peak_rss_mib(),
        device=torch.cuda.get_device_name() if is_cuda else "cpu",
        versions={"torch": torch.__version__},
    )
    print(found.to_json(), flush=True)


if __name__ == "__main__":
    main()
