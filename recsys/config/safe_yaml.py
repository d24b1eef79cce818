"""Parses the YAML of a config into plain values of limited size.

The size of the result is computed before it is built, since aliases and merge keys (`<<`) can
double it with each line.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_MOST_CHARACTERS = 1 << 18
_MOST_DEEP = 50
_MOST_VALUES = 50_000
_LONGEST_NUMBER = 300
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN = (str, int, float, bool, type(None), list, dict)


class YamlProblem(Exception):
    """An error in a YAML text.

    Args:
        problem: Description of the error.
        mark: Position as given by PyYAML; None if it is unknown.

    Attributes:
        place: `, line 3, column 5`, or empty if the position is unknown.
    """

    def __init__(self, problem: str, mark: Any = None) -> None:
        super().__init__(problem)
        self.place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def parse_yaml(text: str) -> Any:
    """Returns the value of a YAML text.

    Raises:
        YamlProblem: The text is not valid YAML, its value is too large, or it contains a value
            that JSON can't represent, such as a date.
    """
    if len(text) > _MOST_CHARACTERS:
        raise YamlProblem(f"{len(text):,} characters; at most {_MOST_CHARACTERS:,} are allowed")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        return loader.construct_document(node)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        column = len(before) - before.rfind("\n") - 1
        mark = yaml.Mark("", error.position, before.count("\n"), column, None, 0)
        problem = f"the character {chr(error.character)!r} is not allowed here"
        raise YamlProblem(problem, mark) from None
    except yaml.MarkedYAMLError as error:
        raise YamlProblem(error.problem or str(error), error.problem_mark) from None
    except yaml.YAMLError as error:
        raise YamlProblem(str(error)) from None


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Returns the number of values of a node, with aliases counted at each use.

    Args:
        node: The node.
        counts: Counts of visited nodes by id; 0 marks a node that is being counted.
    """
    count = counts.get(id(node))
    if count == 0:
        raise YamlProblem("an alias refers to a node that contains it", node.start_mark)
    if count is None:
        counts[id(node)] = 0
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        count = counts[id(node)] = 1 + sum(_count_values(child, counts) for child in children)
    if count > _MOST_VALUES:
        raise YamlProblem(f"aliases expand to more than {_MOST_VALUES:,} values", node.start_mark)
    return count


class _Loader(yaml.SafeLoader):
    """Safe YAML loader in which 1e-3 is a number, as in YAML 1.2, and keys are unique."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Returns the next node; raises if nodes are nested too deeply."""
        if self._depth > _MOST_DEEP:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise YamlProblem(f"nested more than {_MOST_DEEP} levels deep", mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns the dict of `node`; PyYAML would silently keep the last of equal keys."""
        if not isinstance(node, yaml.MappingNode):  # An explicit tag can be on any node.
            raise YamlProblem("it is not a map", node.start_mark)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise YamlProblem(f"duplicate key {key.value!r}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Returns the value of `node`; errors name its location."""
        kind = str(node.tag).rpartition(":")[2]
        shown = repr(node.value[:40]) if isinstance(node, yaml.ScalarNode) else "it"
        if kind in ("int", "float", "timestamp") and len(node.value) > _LONGEST_NUMBER:
            raise YamlProblem("a number that is too long", node.start_mark)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            raise YamlProblem(f"{shown} is not a valid {kind}", node.start_mark) from None
        if type(value) not in _PLAIN:
            raise YamlProblem(f"{shown} is a {kind}; write it in quotes", node.start_mark)
        if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise YamlProblem(f"{shown} contains half a surrogate pair", node.start_mark)
        return value


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+\Z"),
    list("-+.0123456789"),
)
