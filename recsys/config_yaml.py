"""The YAML of a config as plain values: text, numbers, lists and maps, bounded in size.

What a short text may stand for is counted before it is built: aliases and merge keys
(`<<`) can double with each line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.constructor import ConstructorError

_MOST_CHARACTERS = 1 << 18
_MOST_DEEP = 50
_MOST_VALUES = 50_000
_LONGEST_NUMBER = 300
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN = (str, int, float, bool, type(None), list, dict)


class YamlProblem(Exception):
    """What is wrong with a text, and where.

    Args:
        problem: What is wrong.
        line: Line, from 1 on; `None` where no place is known.
        column: Column, from 1 on.
    """

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        self.problem, self.line, self.column = problem, line, column
        super().__init__(problem)

    @property
    def place(self) -> str:
        """`, line 3, column 5`, or nothing."""
        return "" if self.line is None else f", line {self.line}, column {self.column}"


class NotPlain(YamlProblem):
    """A value that JSON has no word for, such as a date."""


def parse_yaml(text: str) -> Any:
    """Returns the value that a YAML text stands for.

    Raises:
        YamlProblem: It is no YAML, stands for too much, or holds a value of another kind.
    """
    if len(text) > _MOST_CHARACTERS:
        raise YamlProblem(f"{len(text):,} characters, and {_MOST_CHARACTERS:,} are the most")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Amount().of(node)
        return loader.construct_document(node)
    except yaml.reader.ReaderError as error:
        raise _unreadable(text, error) from None
    except yaml.MarkedYAMLError as error:
        raise _marked(YamlProblem, error.problem or str(error), error.problem_mark) from None
    except yaml.YAMLError as error:
        raise YamlProblem(str(error)) from None


def _marked(kind: type[YamlProblem], problem: str, mark: Any) -> YamlProblem:
    if mark is None:
        return kind(problem)
    return kind(problem, mark.line + 1, mark.column + 1)


def _unreadable(text: str, error: yaml.reader.ReaderError) -> YamlProblem:
    before = text[: error.position]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return YamlProblem(f"the character {chr(error.character)!r} may not stand there", line, column)


# --- what a text stands for


class _Amount:
    """Counts the values of nodes, those that aliases repeat as often as they do."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, node: yaml.Node) -> int:
        """Returns how many values a node stands for.

        Raises:
            YamlProblem: Too many, or a node stands in itself.
        """
        known = self._known.get(id(node))
        if known == 0:
            raise _marked(YamlProblem, "an alias stands for what it stands in", node.start_mark)
        if known is None:
            self._known[id(node)] = 0
            known = self._known[id(node)] = 1 + sum(map(self.of, _children(node)))
        if known > _MOST_VALUES:
            problem = f"aliases stand for more than {_MOST_VALUES:,} values"
            raise _marked(YamlProblem, problem, node.start_mark)
        return known


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number, as in YAML 1.2, and no key comes twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Returns the next node; refuses lists and maps that stand too deep in each other."""
        if self._depth > _MOST_DEEP:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ConstructorError(None, None, f"nested more than {_MOST_DEEP} deep", mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns the map of `node`; YAML's own would keep the last of equal keys."""
        if not isinstance(node, yaml.MappingNode):  # A tag may say that anything is one.
            raise ConstructorError(None, None, "it is no map", node.start_mark)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise ConstructorError(
                        None, None, f"the key {key.value!r} comes twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Returns the value of `node`; names its place where YAML's own fails."""
        kind = str(node.tag).rpartition(":")[2]
        shown = repr(node.value[:40]) if isinstance(node, yaml.ScalarNode) else "it"
        if kind in ("int", "float", "timestamp") and len(node.value) > _LONGEST_NUMBER:
            raise ConstructorError(None, None, "a number that is too long", node.start_mark)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            problem = f"{shown} is no {kind}"
            raise ConstructorError(None, None, problem, node.start_mark) from None
        if type(value) not in _PLAIN:
            raise _marked(NotPlain, f"{shown} is a {kind}", node.start_mark)
        if type(value) is str and not _is_text(value):
            raise _marked(NotPlain, f"{shown} has half a character", node.start_mark)
        return value


def _is_text(value: str) -> bool:
    """Returns whether a text can be written as UTF-8: it has no lone surrogate."""
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+\Z"),
    list("-+.0123456789"),
)
