"""The score of a candidate: a formula over the predictions of labels.

    sum     = ["-"] product {("+" | "-") product}
    product = power {"*" power}
    power   = atom [("^" | "**") number]
    atom    = number | label | "(" sum ")"

It is computed by Python's operators, so by NumPy, JAX and TensorFlow alike.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

_DEEPEST = 50
_NUMBER = r"\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
Node = tuple[Any, ...]
"""`("number", value)`, `("label", name)`, `("^", node, power)`, or an operator and two nodes."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A formula over labels.

    Attributes:
        root: Its syntax tree.
        labels: The labels that it reads, in the order of the ranker's.
    """

    root: Node
    labels: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, labels: Sequence[str]) -> Self:
        """Returns the formula of a text.

        Args:
            text: The formula, such as `click * like ^ 0.5`; empty: the first label.
            labels: Names of the ranker's labels. A name may have hyphens; the longest one counts.

        Raises:
            ValueError: The text is no formula, or it reads no label.
        """
        parser = _Parser(text or labels[0], labels)
        root = parser.whole()
        read = parser.read
        if not read:
            raise ValueError(f"must name a label ({', '.join(labels)}); received {text!r}")
        return cls(root, tuple(name for name in labels if name in read))

    def value(self, predictions: Mapping[str, Any]) -> Any:
        """Returns the scores, of the shape of the predictions.

        A power that is not whole takes negative values, such as those of an amount, as 0.

        Args:
            predictions: By label, the probability for a shown item, or the expected amount:
                arrays of floats, of NumPy, JAX or TensorFlow.
        """
        return _value(self.root, predictions)


def _value(node: Node, predictions: Mapping[str, Any]) -> Any:
    kind = node[0]
    if kind == "number":
        return node[1]
    if kind == "label":
        return predictions[node[1]]
    left = _value(node[1], predictions)
    if kind == "^":
        power = node[2]
        return left**power if power.is_integer() else (0.5 * (left + abs(left))) ** power
    right = _value(node[2], predictions)
    if kind == "*":
        return left * right
    return left + right if kind == "+" else left - right


class _Parser:
    """Reads a formula from left to right.

    Attributes:
        read: Labels that were read so far.
    """

    def __init__(self, text: str, labels: Sequence[str]) -> None:
        names = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
        label, sign = rf"(?P<label>(?:{names})(?!\w))", r"(?P<sign>\*\*|[^\W\d]\w*|\S)"
        token = rf"\s*(?:{label}|(?P<number>{_NUMBER})|{sign})"
        self.tokens = list(re.finditer(token, text))
        self.text, self.labels, self.next, self.depth = text, labels, 0, 0
        self.read: set[str] = set()

    def whole(self) -> Node:
        node = self.sum()
        if self.next < len(self.tokens):
            raise self.error("an operator (+, -, *, ^) or the end")
        return node

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ValueError(f"must have at most {_DEEPEST} nested parentheses")
        is_negative = self.take("-") is not None
        node = self.product()
        if is_negative:
            node = ("*", ("number", -1.0), node)
        while sign := self.take("+", "-"):
            node = (sign, node, self.product())
        self.depth -= 1
        return node

    def product(self) -> Node:
        node = self.power()
        while self.take("*"):
            node = ("*", node, self.power())
        return node

    def power(self) -> Node:
        node = self.atom()
        if not self.take("^", "**"):
            return node
        power = self.number()
        if power is None:
            raise self.error("a number as the power")
        return ("^", node, power)

    def atom(self) -> Node:
        if self.take("("):
            node = self.sum()
            if not self.take(")"):
                raise self.error("')'")
            return node
        if (number := self.number()) is not None:
            return ("number", number)
        token = self.tokens[self.next] if self.next < len(self.tokens) else None
        if token is None or token["label"] is None:
            raise self.error(f"a label ({', '.join(self.labels)}), a number or '('")
        self.next += 1
        self.read.add(token["label"])
        return ("label", token["label"])

    def number(self) -> float | None:
        """Takes a number, if one is next."""
        if self.next == len(self.tokens) or self.tokens[self.next]["number"] is None:
            return None
        value = float(self.tokens[self.next]["number"])
        if not math.isfinite(value):
            raise self.error("a finite number")
        self.next += 1
        return value

    def take(self, *signs: str) -> str | None:
        """Takes one of some signs, if it is next."""
        if self.next == len(self.tokens) or self.tokens[self.next]["sign"] not in signs:
            return None
        self.next += 1
        return str(self.tokens[self.next - 1]["sign"])

    def error(self, expected: str) -> ValueError:
        found, at = "its end", len(self.text)
        if self.next < len(self.tokens):
            token = self.tokens[self.next]
            found, at = repr(token[0].strip()), token.end() - len(token[0].strip())
        return ValueError(
            f"must have {expected} at character {at + 1}; received {found} in {self.text!r}"
        )
