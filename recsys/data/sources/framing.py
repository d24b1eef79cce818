"""The frames of TFRecord: length, its checksum, the bytes, their checksum."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """Returns the masked CRC-32C of `data`, as TFRecord writes it."""
    crc = _crc32c()(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def is_framed(start: bytes) -> bool:
    """Returns whether bytes begin with the header of a record."""
    if len(start) < HEADER.size:
        return False
    _, crc = HEADER.unpack_from(start)
    return masked_crc(start[:8]) == crc


@functools.cache
def _crc32c() -> Callable[[bytes], int]:
    try:
        from google_crc32c import value
    except ImportError:
        return _slow_crc32c
    return value


def _slow_crc32c(data: bytes) -> int:
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table
