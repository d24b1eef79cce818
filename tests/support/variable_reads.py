"""Which variables of a SavedModel are gathered from in one place and read whole in another.

TensorFlow copies such a variable at every read: a table of gigabytes, for each request.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class _Function:
    arguments: list[str]
    nodes: list[Any]


def read_both_ways(graph: Any) -> list[str]:
    """Returns a sentence for each variable of `graph`, a `GraphDef`."""
    functions = {
        part.signature.name: _Function(
            [arg.name for arg in part.signature.input_arg], list(part.node_def)
        )
        for part in graph.library.function
    }
    memo: dict[str, list[set[str]]] = {}
    found = []
    for name, function in functions.items():
        for argument, kinds in zip(function.arguments, _kinds(name, functions, memo), strict=True):
            if {"gather", "read"} <= kinds:
                found.append(f"{name}: {argument}")
    return found


def _kinds(name: str, functions: dict[str, _Function], memo: dict) -> list[set[str]]:
    """Returns what is done with each argument of a function, in what it calls too."""
    if name in memo:
        return memo[name]
    function = functions[name]
    memo[name] = [set() for _ in function.arguments]
    place = {argument: number for number, argument in enumerate(function.arguments)}
    alias = dict(place)
    for node in function.nodes:
        inputs = [alias.get(one.split(":")[0]) for one in node.input if not one.startswith("^")]
        if node.op == "Identity" and inputs[0] is not None:
            alias[node.name] = inputs[0]
        kind = {"ResourceGather": "gather", "ReadVariableOp": "read"}.get(node.op)
        if kind and inputs[0] is not None:
            memo[name][inputs[0]].add(kind)
        for value in node.attr.values():
            called = value.func.name
            if called not in functions:
                continue
            # The condition of `If` is not an argument of its branches.
            skipped = 1 if node.op in ("If", "StatelessIf", "Case", "StatelessCase") else 0
            of_called = _kinds(called, functions, memo)
            for number, kinds in zip(inputs[skipped:], of_called, strict=False):
                if number is not None:
                    memo[name][number] |= kinds
    return memo[name]
