"""Requests to the signatures of a model, independent of the protocol, and threads that answer.

A bounded queue is in front of a few threads, and waiting requests are answered together. A request
never waits for others: if a thread is free, it is answered at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from recsys.savedmodel.signatures import DEFAULT_SIGNATURE, Arrays, Signature
from recsys.serving.pool import Pool
from recsys.serving.requests import (
    SMALL_BYTES,
    UNAVAILABLE,
    HttpError,
    Limits,
    busy,
    too_large,
    wrong,
)
from recsys.serving.served_log import ServedLog
from recsys.serving.served_model import ServedModel

_MOST_JOINED_ROWS = 8
"""Maximum number of rows of a request to batch with others; larger requests gain nothing."""
_SHOWN_NAMES = 8


@dataclasses.dataclass(frozen=True)
class Question:
    """A request to a signature.

    Attributes:
        signature: Name of the signature.
        inputs: Its inputs.
        write: Returns the response for the outputs.
    """

    signature: str
    inputs: Arrays
    write: Callable[[Arrays], Any]

    @property
    def n_rows(self) -> int:
        """Rows of the inputs."""
        return len(next(iter(self.inputs.values())))

    def may_join(self, model: ServedModel) -> bool:
        """Returns whether the question may be batched with others."""
        return self.signature in model.joined and 0 < self.n_rows <= _MOST_JOINED_ROWS


class Predictor:
    """Computes answers in threads.

    Args:
        pool: The loaded versions.
        work: The threads.
        limits: Limits of a request.
        log: Log of what was served; None: none.
    """

    def __init__(
        self, pool: Pool, work: MicroBatcher, limits: Limits, log: ServedLog | None = None
    ) -> None:
        self.pool, self.work, self.limits, self.log = pool, work, limits, log

    async def predict(self, n_bytes: int, read: Callable[[], tuple[ServedModel, Question]]) -> Any:
        """Returns the response to a request.

        Args:
            n_bytes: Size of the request; a large one is read in a thread.
            read: Parses the request; returns the version and the question.

        Raises:
            RecsysError: The request is invalid or too large, or the server is busy.
        """
        self.work.check()

        def read_checked() -> tuple[ServedModel, Question]:
            model, question = read()
            check_rows(question.inputs, self.limits)
            model.check_inputs(question.inputs)
            return model, question

        if n_bytes > SMALL_BYTES:
            return await self.work.run(lambda: _read_and_answer(read_checked))
        model, question = read_checked()
        kind = (id(model), question.signature) if question.may_join(model) else object()
        answer = functools.partial(answer_together, model)
        return await self.work.together(kind, question, answer)


def _read_and_answer(read: Callable[[], tuple[ServedModel, Question]]) -> Any:
    model, question = read()
    return answer_together(model, [question])[0]


def check_rows(inputs: Arrays, limits: Limits) -> None:
    """Checks that all inputs have the same number of rows, within the limits."""
    sizes = {name: len(values) for name, values in inputs.items()}
    if len(set(sizes.values())) > 1:
        rule = "All inputs must have the same number of rows."
        cure = "Give every input one value, or one list, for each row."
        raise wrong("R556", rule, cure, sizes)
    if max(sizes.values()) > limits.rows:
        raise too_large("rows", limits.rows, max(sizes.values()))


def find_signature(signatures: Mapping[str, Signature], name: Any) -> tuple[str, Signature]:
    """Returns the name and the inputs of a signature; the default one for an empty name."""
    name = name or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        rule = "The signature name must be a signature of the model."
        raise wrong("R553", rule, f"Name one of {', '.join(map(repr, sorted(signatures)))}.", name)
    return name, signatures[name]


def check_names(where: str, names: Iterable[str], given: Any) -> None:
    """Checks that `given` is a mapping with exactly these keys."""
    if not isinstance(given, Mapping) or given.keys() != {*names}:
        rule = f"{where} must be an object with the keys {', '.join(map(repr, sorted(names)))}."
        cure = "GET …/metadata lists the inputs of every signature."
        shown = sorted(given)[:_SHOWN_NAMES] if isinstance(given, Mapping) else type(given).__name__
        raise wrong("R554", rule, cure, shown)


def select_outputs(outputs: Arrays, names: Sequence[str]) -> Arrays:
    """Returns the outputs with these names, or all."""
    unknown = [name for name in names if name not in outputs]
    if unknown:
        rule = f"Requested outputs must be among {', '.join(sorted(outputs))}."
        raise wrong("R554", rule, "Leave them out for all outputs.", unknown)
    return {name: outputs[name] for name in names or sorted(outputs)}


def answer_together(model: ServedModel, questions: Sequence[Question]) -> list[Any]:
    """Returns the answers to several questions of one signature, computed in one call."""
    first = questions[0]
    if len(questions) == 1:
        return [first.write(model.ask(first.signature, first.inputs))]
    stacked = {name: _stacked([q.inputs[name] for q in questions]) for name in first.inputs}
    outputs = model.ask(first.signature, stacked)
    ends = np.cumsum([question.n_rows for question in questions])
    if any(len(values) != ends[-1] for values in outputs.values()):
        raise ValueError("the outputs are not by row")  # Then each is answered by itself.
    parts = {name: np.split(values, ends[:-1]) for name, values in outputs.items()}
    return [
        question.write({name: parts[name][i] for name in parts})
        for i, question in enumerate(questions)
    ]


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenates rows; lists of texts are padded to the longest."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    stacked = np.full((sum(map(len, parts)), max(part.shape[1] for part in parts)), b"", object)
    start = 0
    for part in parts:
        stacked[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return stacked


# --- threads

T = TypeVar("T")
_MOST_TOGETHER = 24
"""Requests in a batch; the C kernel ranks so many at the cost of one."""


class _Waiting(NamedTuple):
    question: Any
    answer: Callable[[Sequence[Any]], Sequence[Any]]
    future: Future[Any]


class MicroBatcher:
    """Runs functions in threads; refuses them if too many wait.

    Args:
        limits: Threads, length of the queue, and timeout.

    Attributes:
        held: Functions that run or wait.
    """

    def __init__(self, limits: Limits) -> None:
        self._threads = ThreadPoolExecutor(limits.threads, "recsys-work")
        self._places, self._answer_s = limits.threads + limits.queue, limits.answer_s
        self.held = 0
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, list[_Waiting]] = {}

    def check(self) -> None:
        """Refuses a request early if the queue is full (429)."""
        if self.held >= self._places:
            raise busy(f"{self.held} requests")

    async def run(self, function: Callable[[], T]) -> T:
        """Runs `function` in a thread, and returns its result; raises like `together`."""
        return await self.together(object(), None, lambda _: [function()])

    async def together(
        self, kind: Hashable, question: Any, answer: Callable[[Sequence[Any]], Sequence[T]]
    ) -> T:
        """Returns the answer to a question; waiting questions of a kind are answered in a batch.

        Args:
            kind: Kind of the question.
            question: The question.
            answer: Returns the answers to several questions of the kind. If it raises an error,
                each is answered by itself.

        Raises:
            HttpError: The queue is full (429), or the answer took too long (503).
        """
        waiting = _Waiting(question, answer, Future())
        self.check()
        with self._lock:
            self.held += 1
            self._waiting.setdefault(kind, []).append(waiting)
        # A running thread can't be stopped; it counts until it has finished.
        waiting.future.add_done_callback(self._release)
        self._threads.submit(self._answer_some, kind)
        try:
            shielded = asyncio.shield(asyncio.wrap_future(waiting.future))
            return await asyncio.wait_for(shielded, self._answer_s)
        except TimeoutError:
            waiting.future.cancel()
            rule = f"A response must be ready within {self._answer_s:g} s."
            cure = "Send smaller requests, or retry later."
            raise HttpError(UNAVAILABLE, "R561", rule, cure) from None

    def close(self) -> None:
        """Waits for running functions and drops waiting ones."""
        self._threads.shutdown(cancel_futures=True)

    def _answer_some(self, kind: Hashable) -> None:
        """Answers the oldest questions of a kind. There is one call for each question."""
        with self._lock:
            waiting = self._waiting.pop(kind, [])
            some, rest = waiting[:_MOST_TOGETHER], waiting[_MOST_TOGETHER:]
            if rest:
                self._waiting[kind] = rest
        _answer([w for w in some if w.future.set_running_or_notify_cancel()])

    def _release(self, _: Future[Any]) -> None:
        with self._lock:
            self.held -= 1


def _answer(waiting: Sequence[_Waiting]) -> None:
    if not waiting:
        return
    try:
        answers = waiting[0].answer([w.question for w in waiting])
        for w, answer in zip(waiting, answers, strict=True):
            w.future.set_result(answer)
    except BaseException as error:  # noqa: BLE001 any failure of a damaged bundle, or of a request, is reported
        if len(waiting) == 1:
            waiting[0].future.set_exception(error)
            return
        for w in waiting:  # One of the questions may be the cause.
            _answer([w])
