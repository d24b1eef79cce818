"""Collectives on the host: exchange values, errors and arrays between the processes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.experimental import multihost_utils

from recsys.distributed.coordination import client, n_processes, process_index
from recsys.distributed.ending import ending_after
from recsys.errors import RecsysError
from recsys.system.disk import storage_error
from recsys.system.events import note

_AGREE_S = 1800.0
_PIECE_BYTES = 1 << 26
_meetings = itertools.count()


def is_primary() -> bool:
    """Returns whether this is process 0, which acts for all of them."""
    return process_index() == 0


def meet(limit_s: float = _AGREE_S) -> None:
    """Waits for the other processes.

    Args:
        limit_s: Timeout, after which this process ends with an error message [s].
    """
    exchange(None, limit_s)


def exchange(value: Any, limit_s: float = _AGREE_S) -> list[Any]:
    """Returns the JSON values of all processes, in their order.

    They are exchanged through JAX's coordination service: collectives on devices would need a
    program, and gloo gives up after 30 s.

    Args:
        value: Value of this process.
        limit_s: Timeout, after which this process ends with an error message [s].
    """
    if n_processes() == 1:
        return [value]
    service, number = client(), next(_meetings)
    service.key_value_set(f"recsys/{number}/{process_index()}", json.dumps(value))
    with ending_after(limit_s):
        service.wait_at_barrier(f"recsys {number}", int(2000 * limit_s))
    values = dict(service.key_value_dir_get(f"recsys/{number}/"))
    if is_primary() and number:  # All processes have read the previous values.
        service.key_value_delete(f"recsys/{number - 1}/")
    return [json.loads(values[f"recsys/{number}/{index}"]) for index in range(n_processes())]


def agreed(decide: Callable[[], Any], limit_s: float = _AGREE_S) -> Any:
    """Returns the primary's result of `decide`, or raises its error, on every process.

    Args:
        decide: Function to call on the primary only; returns JSON.
        limit_s: Timeout of the others [s].
    """
    if n_processes() == 1:
        return decide()
    return _value(exchange(_answer(decide) if is_primary() else None, limit_s)[0])


def jointly(do: Callable[[], Any]) -> list[Any]:
    """Returns the results of `do` on all processes, in their order, on every process.

    Args:
        do: Function to call; returns JSON.

    Raises:
        RecsysError: The error of the first process that has one, on every process.
    """
    if n_processes() == 1:
        return [do()]
    return [_value(answer) for answer in exchange(_answer(do))]


def in_shares(check: Callable[[int, int], None]) -> None:
    """Runs `check` on every process; all raise the error of the first one that fails.

    Args:
        check: Function of the process' index and the number of processes, which checks the
            share of that process.
    """
    jointly(lambda: check(process_index(), n_processes()))


def _answer(decide: Callable[[], Any]) -> dict[str, Any]:
    """Returns the value of `decide`, or its error, as JSON for the other processes."""
    try:
        return {"value": decide()}
    except RecsysError as error:
        return {"error": error.to_json()}
    except OSError as error:
        return {"error": storage_error(error).to_json()}


def _value(answer: dict[str, Any]) -> Any:
    """Returns the value, or raises the error, that `_answer` returned in some process."""
    if "error" in answer:
        raise RecsysError.from_json(answer["error"])
    return answer["value"]


def from_primary(make: Callable[[], np.ndarray]) -> np.ndarray:
    """Calls `make` on the first process only, and returns its array on every process.

    Raises:
        RecsysError: The first process raised it.
    """
    own: list[np.ndarray] = []

    def described() -> tuple[str, list[int]]:
        own.append(np.ascontiguousarray(make()))
        return own[0].dtype.str, list(own[0].shape)

    kind, shape = agreed(described)
    if n_processes() == 1:
        return own[0]
    array = own[0] if own else np.zeros(shape, kind)
    letters = array.reshape(-1).view(np.uint8)
    with ending_after(_AGREE_S):
        pieces = [
            np.asarray(multihost_utils.broadcast_one_to_all(letters[start : start + _PIECE_BYTES]))
            for start in range(0, len(letters), _PIECE_BYTES)
        ]
    none = np.zeros(0, np.uint8)
    return np.concatenate([none, *pieces]).astype(np.uint8).view(kind).reshape(shape)


def stacked(make: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns the arrays of all processes `[processes, …]`, on every process.

    They must have the same shape and dtype. They are exchanged through the devices, in pieces.

    Args:
        make: Returns the array of a process.

    Raises:
        RecsysError: The first error that a process raised.
    """
    own: list[np.ndarray] = []
    jointly(lambda: own.append(make()))
    count, array = n_processes(), own[0]
    if count == 1 or not array.size:
        return np.stack(own * count)
    letters = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with ending_after(_AGREE_S):
        pieces = [
            multihost_utils.process_allgather(letters[start : start + _PIECE_BYTES])
            for start in range(0, len(letters), _PIECE_BYTES)
        ]
    return np.concatenate(pieces, axis=1).view(array.dtype).reshape(count, *array.shape)


def note_on_primary(sentence: str) -> None:
    """Reports a note, on the primary process only."""
    if is_primary():
        note(sentence)
