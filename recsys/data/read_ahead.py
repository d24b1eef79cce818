"""Reads the batches of a source ahead, in threads."""

from __future__ import annotations

import grain

from recsys.data.batches import Batch, BatchSource

_BLOCK_EXAMPLES = 1 << 17
_BLOCK_CANDIDATES = 1 << 19
_BLOCK_NUMBERS = 1 << 25  # Of four bytes each.
_FIRST_PART = 16
_READ_AHEAD_BLOCKS = 2
_READERS = 2


class _Blocks:
    """The batches of a source, many consecutive ones of an epoch at a time.

    The first block comes in two parts, of which the first is small: training waits for it.

    Args:
        source: The batches.
        first_step: Step to begin with.
        end_step: Step to end before.
    """

    def __init__(self, source: BatchSource, first_step: int, end_step: int) -> None:
        self._source, self._first, self._end = source, first_step, end_step
        examples = _BLOCK_EXAMPLES // source.batch_size
        candidates = _BLOCK_CANDIDATES // source.n_candidates
        numbers = _BLOCK_NUMBERS // source.numbers_of_batch
        self._size = max(1, min(examples, candidates, numbers))
        self._per_epoch = -(-source.steps_per_epoch // self._size)
        self._skipped = self._block_of(first_step)

    def __len__(self) -> int:
        if self._end <= self._first:
            return 0
        return self._block_of(self._end - 1) + 2 - self._skipped

    def __getitem__(self, number: int) -> list[Batch]:
        first, end = self._steps_of(max(0, number - 1))
        border = min(first + max(1, self._size // _FIRST_PART), end)
        if number < 2:
            first, end = ((first, border), (border, end))[number]
        return self._source.batches(first, end) if first < end else []

    def _steps_of(self, block: int) -> tuple[int, int]:
        """Returns the steps of a block: the first, and the one after the last."""
        epoch, position = divmod(block + self._skipped, self._per_epoch)
        begin = epoch * self._source.steps_per_epoch
        first = begin + position * self._size
        end = min(first + self._size, begin + self._source.steps_per_epoch, self._end)
        return max(first, self._first), end

    def _block_of(self, step: int) -> int:
        epoch, position = divmod(step, self._source.steps_per_epoch)
        return epoch * self._per_epoch + position // self._size


class _Unpack(grain.experimental.FlatMapTransform):
    """Lays the batches of blocks one after the other, each as Keras takes it."""

    max_fan_out = _BLOCK_EXAMPLES

    def flat_map(self, element: list[Batch]) -> list[tuple[Batch]]:
        """Returns the batches of a block as tuples of one."""
        return [(batch,) for batch in element]


def read_ahead(
    source: BatchSource, first_step: int = 0, end_step: int | None = None
) -> grain.IterDataset:
    """Returns a Grain dataset of `(batch,)`, read by threads ahead.

    Args:
        source: The batches.
        first_step: Step to begin with.
        end_step: Step to end before; None: the end of the run.
    """
    end = len(source) if end_step is None else min(end_step, len(source))
    options = grain.ReadOptions(num_threads=_READERS, prefetch_buffer_size=_READ_AHEAD_BLOCKS)
    blocks = grain.MapDataset.source(_Blocks(source, first_step, end)).to_iter_dataset(options)
    return grain.experimental.FlatMapIterDataset(blocks, _Unpack())
