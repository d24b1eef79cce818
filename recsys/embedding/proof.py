"""Proof from the compiled training step that its cost doesn't know the vocabulary.

XLA may do what nobody asked for: copy a table because a read comes after the write,
make a gradient of its size, gather it from all devices. All of that is in the
compiled program: an instruction whose result has a dimension of as many rows as the
table, or its shard, and that isn't an update in place. None may be there.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import Any

from recsys.embedding.plan import planned
from recsys.embedding.table import Table
from recsys.errors import RecsysError

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# What passes a table on, or writes rows of it where it lies. A write that can't be in
# place shows as a copy before it.
_IN_PLACE = frozenset(
    {"parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call"}
    | {"opt-barrier", "optimization-barrier", "custom-call", "scatter", "dynamic-update-slice"}
)
_ITEMSIZE = {"pred": 1, "bf16": 2, "f16": 2, "f64": 8, "s64": 8, "u64": 8, "s8": 1, "u8": 1}
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class StepProof:
    """What the compiled training step holds, on one device.

    Attributes:
        tables: Tables that are larger than what a step reads of them, and checked.
        state_bytes: Bytes that the step changes in place.
        temporary_bytes: Bytes that it needs beside them.
        collectives: Bytes of the results of each kind of collective; of the chunks of
            an exchange, of which a step takes one size, all sizes are counted.
    """

    tables: tuple[str, ...]
    state_bytes: int
    temporary_bytes: int
    collectives: dict[str, int]


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    op: str
    rest: str
    computation: str
    is_root: bool

    def holds(self, rows: set[int], width: int) -> bool:
        """Whether a result has as many rows, of the table's width or of one number."""
        for _, dims in _ARRAY.findall(self.shape):
            sizes = [int(d) for d in dims.split(",") if d]
            for n in rows:
                rest = math.prod(sizes) // n if n in sizes else 0
                if rest in (1, width) or sizes == [n * width]:
                    return True
        return False

    def bytes(self) -> int:
        return sum(
            _ITEMSIZE.get(kind, 4) * math.prod(int(d) for d in dims.split(",") if d)
            for kind, dims in _ARRAY.findall(self.shape)
        )


def prove_step(compiled: Any, tables: Iterable[Table], most_ids: int) -> StepProof:
    """Checks a compiled training step.

    Args:
        compiled: What `jax.jit(step).lower(...).compile()` returned.
        tables: The model's tables.
        most_ids: Ids of a whole batch, over all devices. A table with no more rows on a
            device is smaller than its traffic, and can't be told from it.

    Returns:
        What the step holds.

    Raises:
        RecsysError: It copies, gathers or makes something of a table's size, or doesn't
            change a table in place.
    """
    instructions = _parsed(compiled.as_text())
    roots = {i.computation: i for i in instructions if i.is_root}
    memory = compiled.memory_analysis()
    checked = []
    for table in tables:
        rows = {table.places, table.places // table.site.n_shards}
        if table.optimizer is None or min(rows) <= most_ids:
            continue
        checked.append(table.name)
        for instruction in instructions:
            if instruction.holds(rows, table.dim) and not _is_in_place(instruction, roots):
                raise _found(table, instruction)
    _check_aliases(tables, memory)
    return StepProof(
        tables=tuple(checked),
        state_bytes=int(memory.alias_size_in_bytes),
        temporary_bytes=int(memory.temp_size_in_bytes),
        collectives=_collectives(instructions),
    )


def _parsed(text: str) -> list[_Instruction]:
    found, computation = [], ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            words = line.split()
            computation = (words[1] if words[0] == "ENTRY" else words[0]).lstrip("%")
            continue
        if match := _INSTRUCTION.match(line):
            root, name, shape, op, rest = match.groups()
            found.append(_Instruction(name, shape, op, rest, computation, root is not None))
    return found


def _is_in_place(instruction: _Instruction, roots: dict[str, _Instruction]) -> bool:
    if instruction.op != "fusion":
        return instruction.op in _IN_PLACE
    called = re.search(r"calls=%?([\w.\-]+)", instruction.rest)
    root = roots.get(called.group(1)) if called else None
    return root is not None and _is_in_place(root, roots)


def _found(table: Table, instruction: _Instruction) -> RecsysError:
    kind = "moves" if instruction.op in COLLECTIVES else "makes"
    return RecsysError(
        "R303",
        f"The training step must touch the batch's rows of table {table.name!r} alone; it {kind}"
        " something of the size of the whole table.",
        "Read the table through ShardedEmbedding alone, and leave its variables out of losses"
        " and metrics.",
        f"{instruction.shape} {instruction.op} {instruction.name}",
    )


def _check_aliases(tables: Iterable[Table], memory: Any) -> None:
    plans = [planned(table, table.site.n_shards) for table in tables if table.optimizer is not None]
    needed = sum(plan.bytes_per_device + plan.slot_bytes_per_device for plan in plans)
    if memory.alias_size_in_bytes < needed:
        raise RecsysError(
            "R304",
            f"The training step must change {needed:,} bytes of tables and slots in place.",
            "Compile the model with jit_compile=True, and train it by fit or train_on_batch.",
            memory.alias_size_in_bytes,
        )


def _collectives(instructions: Iterable[_Instruction]) -> dict[str, int]:
    found: dict[str, int] = {}
    for instruction in instructions:
        op = instruction.op.removesuffix("-start")
        if op in COLLECTIVES:
            found[op] = found.get(op, 0) + instruction.bytes()
    return found
