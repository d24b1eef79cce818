"""Proves from the compiled step that its cost doesn't depend on the vocabulary size.

XLA may do more than the program says: copy a table because a read follows a write, create a
gradient of its size, gather it from all devices. So may a model: sum over a table, or over a
vector with an entry per row. All of that shows in the compiled program, as an instruction that
creates or reads as many rows as the table or its shard has. Instructions that only hold them are
allowed: weights and constants that rows are gathered from, and writes of rows in place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from recsys.distributed.collectives import over_gloo
from recsys.embedding.table import Table, planned
from recsys.embedding.table_config import refused_regularizer
from recsys.embedding.traffic import Collective, leaving_of
from recsys.errors import RecsysError

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# Instructions that hold arrays or pass them on.
_HOLDS = frozenset(
    {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional"}
    | {"call", "opt-barrier", "optimization-barrier", "custom-call"}
)
# Instructions that write rows of their first operand, in place if it is held. A write that
# can't be in place shows as a copy before it.
_WRITES_ROWS = frozenset({"scatter", "dynamic-update-slice"})
# Instructions that read all of their operands, even if the result is small and fused.
_READS_ALL = frozenset({"reduce", "reduce-window", "dot", "convolution", "sort", "topk"})
_TOP_K = 'custom_call_target="TopK"'
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|(?:true|false)_computation)=(%?[\w.\-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?)?"
    r"|mesh\[([^\]]+)\](?: ?\{([^}]*)\})?)"
)
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class StepProof:
    """Properties of the compiled training step, on one device.

    Attributes:
        tables: Tables that were checked: those larger than a step's reads of them.
        state_bytes: Size of the arrays that the step changes in place [bytes].
        temporary_bytes: Size of its temporary arrays [bytes].
        collectives: Size of the results of each kind of collective [bytes]. A step uses one of
            several chunk sizes of an exchange; the largest counts.
        dense_per_row: Dense weights with an entry per row of a table. Each step computes their
            whole gradient, so its cost grows with their length.
    """

    tables: tuple[str, ...]
    state_bytes: int
    temporary_bytes: int
    collectives: dict[str, int]
    dense_per_row: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    op: str
    rest: str
    computation: str
    is_root: bool

    @functools.cached_property
    def sizes(self) -> list[list[int]]:
        """Sizes of each array of the result, without dimensions of size 1."""
        return [_sizes(dims) for _, dims in _ARRAY.findall(self.shape)]

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.rest.partition(")")[0])

    @property
    def read_whole(self) -> list[str]:
        """Operands that are read as a whole."""
        if self.op == "scatter":
            return self.operands[1:]
        return self.operands if self.op in _READS_ALL or _TOP_K in self.rest else []

    @property
    def fusion(self) -> str | None:
        """Computation of a fusion."""
        called = re.search(r"calls=%?([\w.\-]+)", self.rest) if self.op == "fusion" else None
        return called.group(1) if called else None

    @property
    def called(self) -> list[str]:
        """Computations that the instruction calls."""
        lists = ("".join(groups) for groups in _CALLED.findall(self.rest))
        return [name for names in lists for name in re.findall(r"[\w.\-]+", names)]

    def bytes(self) -> int:
        return sum(
            _itemsize(kind) * math.prod(int(d) for d in dims.split(",") if d)
            for kind, dims in _ARRAY.findall(self.shape)
        )

    def collective(self, node_devices: int | None) -> Collective:
        """Returns the traffic of this collective, with the fewest bytes possible."""
        group = first_group(self.rest)
        n, nodes = len(group), {device // (node_devices or sys.maxsize) for device in group}
        others = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1}
        sent = round(self.bytes() * others.get(self.op, (n - 1) / n))
        return Collective(self.op, sent, leaving_of(self.op, sent, n, n // len(nodes)))


def _itemsize(kind: str) -> int:
    """Returns the bytes of a number of a type such as `bf16`."""
    bits = re.search(r"\d+", kind)
    return max(1, int(bits[0]) // 8) if bits else 1  # pred


def first_group(attributes: str) -> list[int]:
    """Returns the devices of the first group of a collective; other groups are alike.

    Args:
        attributes: HLO text after the operands. It has the groups as a list, as an iota with an
            optional transpose, or as axes of a mesh.
    """
    groups = _GROUPS.search(attributes)
    if groups is None:
        return [0]
    listed, size, shape, order, mesh, axes = groups.groups()
    if listed is not None:
        return _sizes(listed, but=())
    if mesh is None:
        devices = np.arange(math.prod(_sizes(shape or size, but=())))
        if order is not None:
            devices = devices.reshape(_sizes(shape, but=())).transpose(_sizes(order, but=()))
        return [int(device) for device in devices.ravel()[: int(size)]]
    sizes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", mesh)}
    names = re.findall(r"'?([\w]+)'?", axes) if axes else list(sizes)
    devices = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    first = tuple(slice(None) if name in names else 0 for name in sizes)
    return [int(device) for device in devices[first].ravel()]


def _sizes(dims: str, but: Sequence[str] = ("", "1")) -> list[int]:
    return [int(d) for d in dims.split(",") if d not in but]


class _Program:
    """A compiled program."""

    def __init__(self, text: str) -> None:
        self.instructions = _parsed(text)
        self._entry = re.findall(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)[0]
        self._by_name = {i.name: i for i in self.instructions}
        self._by_computation: dict[str, list[_Instruction]] = {}
        for instruction in self.instructions:
            self._by_computation.setdefault(instruction.computation, []).append(instruction)
        self._roots = {i.computation: i for i in self.instructions if i.is_root}
        self._fused = {i.fusion for i in self.instructions}
        self._results = {name for fused in self._fused if fused for name in self._results_of(fused)}

    def first_whole(self, rows: _Rows) -> tuple[str, _Instruction] | None:
        """Returns the first instruction that makes, moves or reads all of `rows`, with the verb."""
        for instruction in self.instructions:
            if rows.are_in(instruction) and self._makes(instruction):
                return "moves" if instruction.op in COLLECTIVES else "makes", instruction
            operands = [self._by_name.get(name) for name in instruction.read_whole]
            if any(operand and rows.are_in(operand) for operand in operands):
                return "reads", instruction
        return None

    def collectives(self, computation: str | None = None) -> Counter[str]:
        """Returns the result bytes of each kind of collective; the maximum over branches."""
        n_bytes: Counter[str] = Counter()
        for instruction in self._by_computation[computation or self._entry]:
            op = instruction.op.removesuffix("-start")
            if op in COLLECTIVES:
                n_bytes[op] += instruction.bytes()
            called = [self.collectives(name) for name in instruction.called]
            join = operator.or_ if instruction.op == "conditional" else operator.add
            n_bytes += functools.reduce(join, called, Counter())
        return n_bytes

    def sent(
        self, node_devices: int | None = None, computation: str | None = None
    ) -> SentCollectives:
        """Returns the collectives, separately for branches of conditionals."""
        sent = SentCollectives([], [])
        for instruction in self._by_computation[computation or self._entry]:
            if instruction.op in COLLECTIVES:
                sent.always.append(instruction.collective(node_devices))
            called = [self.sent(node_devices, name) for name in instruction.called]
            if instruction.op == "conditional":
                sent.choices.append([branch.always for branch in called])
                continue
            for part in called:
                sent.always.extend(part.always)
                sent.choices.extend(part.choices)
        return sent

    def _makes(self, instruction: _Instruction) -> bool:
        """Whether an instruction computes its result rather than passing it on."""
        if instruction.fusion:
            return not self._is_in_place(self._roots[instruction.fusion])
        if instruction.computation in self._fused:
            # A fusion computes only the needed elements of its inner results: gathered rows.
            is_whole = instruction.op in _WRITES_ROWS or instruction.name in self._results
            return is_whole and not self._is_in_place(instruction)
        return not self._is_in_place(instruction)

    def _results_of(self, fused: str) -> Iterator[str]:
        """Yields the names of a fusion's outputs, also before reshapes."""
        names = [self._roots[fused].name]
        while names:
            instruction = self._by_name[names.pop()]
            yield instruction.name
            if instruction.op in ("bitcast", "tuple"):
                names += instruction.operands

    def _is_in_place(self, instruction: _Instruction) -> bool:
        while instruction.op in _WRITES_ROWS and instruction.operands:
            instruction = self._by_name[instruction.operands[0]]
        if instruction.fusion:
            return self._is_in_place(self._roots[instruction.fusion])
        return instruction.op in _HOLDS


class SentCollectives(NamedTuple):
    """Collectives of a device in a compiled program; the body of a loop counts once.

    Attributes:
        always: Collectives outside of conditionals.
        choices: Collectives of each branch of each conditional, for the ascending capacities of
            an exchange.
    """

    always: list[Collective]
    choices: list[list[list[Collective]]]

    def expected(self, planned: Sequence[Collective]) -> list[Collective] | None:
        """Returns the collectives of a step with the planned capacities.

        Args:
            planned: Planned collectives of all tables.

        Returns:
            The collectives; None if no combination of branches matches the plan.
        """
        chosen = _chosen(self.choices, [c.sent_bytes for c in planned if c.op == "all-to-all"])
        return None if chosen is None else [*self.always, *chosen]


_NEAR = 0.05
"""Largest relative difference of a planned and a compiled collective."""


def _chosen(
    choices: list[list[list[Collective]]], planned: Sequence[int]
) -> list[Collective] | None:
    """Returns the planned branch of each choice; None if none matches the plan."""
    if not choices:
        return []
    for branch in choices[0]:
        left = list(planned)
        for collective in branch:
            near = [n for n in left if abs(n - collective.sent_bytes) <= _NEAR * n]
            if not near:
                break
            left.remove(near[0])
        else:
            others = _chosen(choices[1:], left)
            if others is not None:
                return [*branch, *others]
    return None


def sent_collectives(compiled: Any, node_devices: int | None = None) -> SentCollectives:
    """Returns the collectives of a device in a compiled training step.

    Args:
        compiled: Result of `jax.jit(step).lower(...).compile()`.
        node_devices: Devices of a node, neighbours on the mesh; None for all devices.
    """
    sent = _Program(compiled.as_text()).sent(node_devices)
    choices = [branches for branches in sent.choices if any(branches)]
    return SentCollectives(sent.always, choices)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Matches arrays with an entry per row of a table.

    Attributes:
        counts: Rows of the table, and of a device's shard.
        width: Width of the table [floats].
        vectors: Lengths of vectors that are dense weights of the model, which are allowed.
    """

    counts: frozenset[int]
    width: int
    vectors: frozenset[int]

    def are_in(self, instruction: _Instruction) -> bool:
        """Whether a result has as many rows, of the table's width or of width 1."""
        return any(self._fit(sizes) for sizes in instruction.sizes)

    def _fit(self, sizes: list[int]) -> bool:
        if len(sizes) == 1:
            (n,) = sizes
            is_vector = n in self.counts and n not in self.vectors
            return is_vector or (self.width > 1 and n in {c * self.width for c in self.counts})
        return any(
            n in sizes and math.prod(sizes) == n * width
            for n in self.counts
            for width in {1, self.width}
        )


def check_step(
    compiled: Any,
    tables: Iterable[Table],
    most_ids: int,
    dense: Mapping[str, Sequence[int]] | None = None,
) -> StepProof:
    """Checks a compiled training step.

    Args:
        compiled: Result of `jax.jit(step).lower(...).compile()`.
        tables: The model's tables.
        most_ids: Ids of a whole batch, over all devices. Tables with at most as many rows on a
            device look like arrays of the batch, and aren't checked.
        dense: Shapes of the weights that the model's optimizer trains, by path. Vectors with an
            entry per row of a table are allowed, and named in the proof.

    Returns:
        The proof.

    Raises:
        RecsysError: The step copies, gathers, makes or reads an array of a table's size (R303),
            doesn't change a table in place (R304), or has a reduce-scatter over gloo (R397).
        UsageError: A table has a regularizer (R347).
    """
    program = _Program(compiled.as_text())
    collectives = dict(program.collectives())
    if over_gloo() and "reduce-scatter" in collectives:
        raise RecsysError(
            "R397",
            "On CPUs of several processes a step must not hold a reduce-scatter, whose sums"
            " gloo damages now and then.",
            "Use reduce_scatter of recsys.distributed.collectives in place of jax.lax.psum_scatter,"
            " and its all_gather in place of a jax.lax.all_gather that is learnt through.",
            f"{collectives['reduce-scatter']} bytes",
        )
    memory = compiled.memory_analysis()
    checked: list[str] = []
    per_row: dict[str, int] = {}
    dense = dense or {}
    for table in tables:
        if table.embeddings.regularizer is not None:
            raise refused_regularizer(table.name)
        here = table.n_physical // table.sharding.n_shards
        if table.optimizer is None or here <= most_ids:
            continue
        checked.append(table.name)
        counts = frozenset(n for n in (table.rows, table.n_physical, here) if n > most_ids)
        sizes = {path: [n for n in shape if n != 1] for path, shape in dense.items()}
        vectors = {path: n[0] for path, n in sizes.items() if len(n) == 1 and n[0] in counts}
        rows = _Rows(counts, table.dim, frozenset(vectors.values()))
        if whole := program.first_whole(rows):
            raise _refused(table, *whole, dense)
        per_row |= vectors
    _check_aliases(tables, memory)
    return StepProof(
        tables=tuple(checked),
        state_bytes=int(memory.alias_size_in_bytes),
        temporary_bytes=int(memory.temp_size_in_bytes),
        collectives=collectives,
        dense_per_row=tuple(per_row),
    )


def _parsed(text: str) -> list[_Instruction]:
    parsed, computation = [], ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            words = line.split()
            computation = (words[1] if words[0] == "ENTRY" else words[0]).lstrip("%")
            continue
        if match := _INSTRUCTION.match(line):
            root, name, shape, op, rest = match.groups()
            parsed.append(_Instruction(name, shape, op, rest, computation, root is not None))
    return parsed


def _refused(
    table: Table, verb: str, instruction: _Instruction, dense: Mapping[str, Sequence[int]]
) -> RecsysError:
    alike = [path for path, shape in dense.items() if table.shape[0] in shape]
    weight = f"; here the weight {alike[0]!r} is not" if alike else ""
    return RecsysError(
        "R303",
        f"The training step must touch only the batch's rows of table {table.name!r}; it {verb}"
        " something of the size of the whole table.",
        "Let what has a row for each id be a table of a ShardedEmbedding, a bias one of"
        f" embedding_dim=1{weight}; gather rows of a constant before computing with them; leave"
        " tables' variables out of losses and metrics.",
        f"{instruction.shape} {instruction.op} {instruction.name}",
    )


def _check_aliases(tables: Iterable[Table], memory: Any) -> None:
    plans = [
        planned(table, table.sharding.n_shards) for table in tables if table.optimizer is not None
    ]
    needed = sum(plan.bytes_per_device + plan.slot_bytes_per_device for plan in plans)
    if memory.alias_size_in_bytes < needed:
        raise RecsysError(
            "R304",
            f"The training step must change {needed:,} bytes of tables and slots in place.",
            "Compile the model with jit_compile=True, and train it by fit or train_on_batch.",
            memory.alias_size_in_bytes,
        )
