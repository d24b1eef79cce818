"""Hashes of many texts or numbers at once.

FarmHash's Fingerprint64 of a text never changes, and is the same on every platform:
`tf.strings.to_hash_bucket_fast` and BigQuery's `FARM_FINGERPRINT` compute it, too. The formulas are
from `farmhashna::Hash64` (Geoff Pike, Google, 2014), applied to a vector of texts. Arithmetic is
modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_SEED = np.uint64(81)
_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio; odd, so products are unique.
_BLOCK = 64
_PAD = 8
_AT_ONCE = 1 << 18


def fingerprints(texts: pa.Array) -> np.ndarray:
    """Returns the Fingerprint64 `[n]` uint64 of the UTF-8 of each text `[n]`.

    Args:
        texts: `string` or `large_string`, null counts as the empty text; or a dictionary of
            them, without nulls.
    """
    if pa.types.is_dictionary(texts.type):
        return fingerprints(texts.dictionary)[texts.indices.to_numpy()]
    hashes = np.empty(len(texts), np.uint64)
    # In chunks that fit into the processor's cache.
    for first in range(0, len(texts), _AT_ONCE):
        part = texts.slice(first, _AT_ONCE)
        hashes[first : first + len(part)] = _Texts.of(part).hashes()
    return hashes


def text_bounds(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offsets of the texts `[n + 1]` int64, and the bytes of their buffer."""
    is_large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    kind = np.dtype(np.int64 if is_large else np.int32)
    _, bounds, content = texts.buffers()
    if bounds is None or len(texts) == 0:
        return np.zeros(len(texts) + 1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(bounds, kind, len(texts) + 1, texts.offset * kind.itemsize)
    data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return offsets.astype(np.int64), data


class _Texts:
    """Texts in one buffer.

    Args:
        content: The bytes, padded so that eight can be read from any position.
        start: Position of each text's first byte `[n]` int64.
        length: Length of each text [bytes] `[n]` int64.

    Attributes:
        size: Length of each text [bytes] `[n]` int64.
        length: The same `[n]` uint64.
    """

    def __init__(self, content: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
        self._content, self._start = content, start
        self.size, self.length = length, length.astype(np.uint64)
        n_words = len(content) - _PAD + 1
        self._words = np.ndarray((n_words,), "<u8", content, strides=(1,))

    @classmethod
    def of(cls, texts: pa.Array) -> _Texts:
        offsets, data = text_bounds(texts)
        content = np.zeros(offsets[-1] - offsets[0] + _PAD, np.uint8)
        content[:-_PAD] = data[offsets[0] : offsets[-1]]
        return cls(content, offsets[:-1] - offsets[0], np.diff(offsets))

    def hashes(self) -> np.ndarray:
        """Returns the hash of each text `[n]` uint64."""
        formulas: tuple[tuple[int, Callable[[_Texts], np.ndarray]], ...] = (
            (0, lambda texts: np.full(len(texts), _K2)),
            (3, _hash_to_3),
            (7, _hash_to_7),
            (16, _hash_to_16),
            (32, _hash_to_32),
            (64, _hash_to_64),
        )
        kind = np.searchsorted([longest for longest, _ in formulas], self.size)
        hashes = np.empty(len(self), np.uint64)
        for number, (_, formula) in enumerate([*formulas, (None, _hash_longer)]):
            which = kind == number
            if which.all():
                return formula(self)
            if which.any():
                hashes[which] = formula(self.only(which))
        return hashes

    def __len__(self) -> int:
        return len(self._start)

    def only(self, which: np.ndarray) -> _Texts:
        """Returns the texts selected by `which` `[n]`."""
        return _Texts(self._content, self._start[which], self.size[which])

    def word(self, at: np.ndarray | int) -> np.ndarray:
        """Returns the eight bytes at a position in each text, little-endian."""
        return self._words[self._start + at]

    def half(self, at: np.ndarray | int) -> np.ndarray:
        """Returns the four bytes at a position in each text, little-endian."""
        return self.word(at) & np.uint64(0xFFFFFFFF)


def _rotate(value: np.ndarray, bits: int) -> np.ndarray:
    return (value >> np.uint64(bits)) | (value << np.uint64(64 - bits))


def _shift_mix(value: np.ndarray) -> np.ndarray:
    return value ^ (value >> np.uint64(47))


def _mix(u: np.ndarray, v: np.ndarray, mul: np.ndarray) -> np.ndarray:
    """FarmHash's `HashLen16`."""
    a = _shift_mix((u ^ v) * mul)
    return _shift_mix((v ^ a) * mul) * mul


def _hash_to_3(texts: _Texts) -> np.ndarray:
    first, middle, last = (
        texts.word(at) & np.uint64(0xFF) for at in (0, texts.size >> 1, texts.size - 1)
    )
    y = first + (middle << np.uint64(8))
    z = texts.length + (last << np.uint64(2))
    return _shift_mix(y * _K2 ^ z * _K0) * _K2


def _hash_to_7(texts: _Texts) -> np.ndarray:
    mul = _K2 + texts.length * np.uint64(2)
    return _mix(texts.length + (texts.half(0) << np.uint64(3)), texts.half(texts.size - 4), mul)


def _hash_to_16(texts: _Texts) -> np.ndarray:
    mul = _K2 + texts.length * np.uint64(2)
    a, b = texts.word(0) + _K2, texts.word(texts.size - 8)
    return _mix(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)


def _hash_to_32(texts: _Texts) -> np.ndarray:
    mul = _K2 + texts.length * np.uint64(2)
    a, b = texts.word(0) * _K1, texts.word(8)
    c, d = texts.word(texts.size - 8) * mul, texts.word(texts.size - 16) * _K2
    return _mix(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, mul)


def _hash_to_64(texts: _Texts) -> np.ndarray:
    mul = _K2 + texts.length * np.uint64(2)
    a, b = texts.word(0) * _K2, texts.word(8)
    c, d = texts.word(texts.size - 8) * mul, texts.word(texts.size - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _mix(y, a + _rotate(b + _K2, 18) + c, mul)
    e, f = texts.word(16) * mul, texts.word(24)
    g = (y + texts.word(texts.size - 32)) * mul
    h = (z + texts.word(texts.size - 24)) * mul
    return _mix(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul)


_Pair = tuple[np.ndarray, np.ndarray]


@np.errstate(over="ignore")  # The seeds are scalars.
def _hash_longer(texts: _Texts) -> np.ndarray:
    y = np.full(len(texts), _SEED * _K1 + np.uint64(113))
    z = _shift_mix(y * _K2 + np.uint64(113)) * _K2
    zero = np.zeros(len(texts), np.uint64)
    state = [_SEED * _K2 + texts.word(0), y, z, *(zero.copy() for _ in range(4))]
    blocks = (texts.size - 1) // _BLOCK
    for number in range(int(blocks.max())):
        which = np.flatnonzero(blocks > number)
        stepped = _block(texts.only(which), number * _BLOCK, [part[which] for part in state], None)
        for part, new in zip(state, stepped, strict=True):
            part[which] = new
    x, y, z, v0, v1, w0, w1 = state
    mul = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    w0 = w0 + ((texts.length - np.uint64(1)) & np.uint64(63))
    v0 = v0 + w0
    w0 = w0 + v0
    x, y, z, v0, v1, w0, w1 = _block(texts, texts.size - _BLOCK, [x, y, z, v0, v1, w0, w1], mul)
    left = _mix(v0, w0, mul) + _shift_mix(y) * _K0 + z
    return _mix(left, _mix(v1, w1, mul) + x, mul)


def _block(
    texts: _Texts, at: np.ndarray | int, state: list[np.ndarray], last: np.ndarray | None
) -> list[np.ndarray]:
    """Mixes the 64 bytes from `at` on into the state; `last` is the factor of the last block."""
    x, y, z, v0, v1, w0, w1 = state
    mul = _K1 if last is None else last
    factor = np.uint64(1 if last is None else 9)
    x = _rotate(x + y + v0 + texts.word(at + 8), 37) * mul
    y = _rotate(y + v1 + texts.word(at + 48), 42) * mul
    x = x ^ (w1 * factor)
    y = y + v0 * factor + texts.word(at + 40)
    z = _rotate(z + w0, 33) * mul
    v0, v1 = _weak(texts, at, v1 * mul, x + w0)
    w0, w1 = _weak(texts, at + 32, z + w1, y + texts.word(at + 16))
    return [z, y, x, v0, v1, w0, w1]


def _weak(texts: _Texts, at: np.ndarray | int, a: np.ndarray, b: np.ndarray) -> _Pair:
    """FarmHash's `WeakHashLen32WithSeeds`."""
    w, x, y, z = (texts.word(at + 8 * place) for place in range(4))
    a = a + w
    b = _rotate(b + a + z, 21)
    c = a
    a = a + x + y
    return a + z, b + _rotate(a, 44) + c


def hash_buckets(ids: pa.Array, n_buckets: int) -> np.ndarray:
    """Returns the bucket `[n]` int64 of each id `[n]`, as `tf.strings.to_hash_bucket_fast` does."""
    return (fingerprints(ids) % np.uint64(n_buckets)).astype(np.int64)


def pair_hashes(users: pa.ChunkedArray, items: pa.ChunkedArray, salt: int) -> np.ndarray:
    """Returns a reproducible random number `[n]` uint64 for each pair of ids.

    `mix` is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

    Args:
        users: Ids `[n]`, text.
        items: Ids `[n]`, text.
        salt: Different salts give independent numbers.
    """
    mixed = np.full(len(users), salt, np.uint64)
    for ids in (users, items):
        mixed = mix(mixed + _STEP) ^ fingerprints(ids.combine_chunks())
    return mix(mixed)


def mix(numbers: np.ndarray) -> np.ndarray:
    """Returns a hash `[n]` uint64 of each of `numbers` `[n]` uint64; a bijection."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def repeated_hashes(codes: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rows `[m]` whose hashed key isn't unique: few rows, including all duplicates.

    Args:
        codes: Integers `[n]` of each part of the key.
    """
    mixed = np.zeros(len(codes[0]), np.uint64)
    for code in codes:
        mixed = (mixed ^ code.astype(np.int64).view(np.uint64)) * _STEP
        mixed ^= mixed >> np.uint64(32)
    ordered = np.sort(mixed)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    is_suspect = pc.is_in(pa.array(mixed), pa.array(twice))
    return np.flatnonzero(is_suspect.to_numpy(zero_copy_only=False))
