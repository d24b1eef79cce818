"""Questions of several requests joined into one, and its answer given back to each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recsys.serving.server.question import Question
from recsys.serving.server.signature import Arrays, Model

_JOINED = ("recommend", "recommend_filtered")
"""Signatures whose texts are padded with the empty one, so that rows stand side by side."""
_MOST_ROWS = 8
"""Of a request; a larger one is no faster with others."""


def may_join(question: Question) -> bool:
    """Returns whether a question may be answered together with others."""
    if question.signature not in _JOINED:
        return False
    n = len(next(iter(question.inputs.values())))
    return 0 < n <= _MOST_ROWS


def ask_together(model: Model, questions: Sequence[Question]) -> list[Arrays]:
    """Returns the outputs of each of several questions of one signature, asked as one."""
    signature = questions[0].signature
    if len(questions) == 1:
        return [model.ask(signature, questions[0].inputs)]
    inputs = {
        name: _stacked([one.inputs[name] for one in questions]) for name in questions[0].inputs
    }
    outputs = model.ask(signature, inputs)
    sizes = [len(next(iter(one.inputs.values()))) for one in questions]
    if any(len(values) != sum(sizes) for values in outputs.values()):
        raise ValueError("the outputs are not by row")  # Each is asked alone then.
    ends = np.cumsum(sizes)[:-1]
    parts = {name: np.split(values, ends) for name, values in outputs.items()}
    return [{name: parts[name][place] for name in parts} for place in range(len(questions))]


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns rows one below the other; lists of texts padded to the longest."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [
            np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=b"")
            if part.shape[1] < width
            else part
            for part in parts
        ]
    )
