"""Requests to the signatures of a model, independent of the protocol."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from recsys.savedmodel.signatures import DEFAULT_SIGNATURE, Arrays, Signature
from recsys.serving.served_model import ServedModel
from recsys.serving.server.errors import too_large, wrong
from recsys.serving.server.limits import SMALL_BYTES, Limits
from recsys.serving.server.micro_batcher import MicroBatcher
from recsys.serving.server.pool import Pool

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
    """

    def __init__(self, pool: Pool, work: MicroBatcher, limits: Limits) -> None:
        self.pool, self.work, self.limits = pool, work, limits

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
