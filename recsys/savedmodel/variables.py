"""The large variables of a SavedModel, written and loaded slice by slice.

No table is ever in memory: `filled_later` and `fill` write them, `load_mapped` loads them.

`filled_later` makes a large variable without rows, so neither Keras nor `tf.saved_model.save`
holds it. Afterwards `fill` rewrites `variables/` with these variables in slices that are read
from their files, using TensorFlow's operations for checkpoints of partitioned variables. Readers
of the SavedModel see whole variables: `RestoreV2` joins the slices.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

from recsys.errors import RecsysError
from recsys.savedmodel.row_slices import read_rows, slice_bounds
from recsys.savedmodel.signatures import load_saved_model, not_loadable
from recsys.system.files import free_there

if TYPE_CHECKING:  # The process of the parity checks has neither Keras nor `recsys.models`.
    from recsys.embedding.model import SparseModel
    from recsys.embedding.saved_arrays import SavedRows
    from recsys.embedding.table import Table

SMALL_BYTES = 1 << 20
"""Maximum size up to which `constant` stores the values directly [bytes]."""

_SOURCE, _PREFIX = "_recsys_source", "filled_later_"
_NUMBERS = itertools.count()
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

Report = Callable[[int, int], None]
"""Called with the number of written bytes and the total."""


def filled_later(values: np.ndarray | SavedRows, dtype: tf.DType) -> tf.Variable:
    """Returns a variable without rows, into which `fill` writes `values`.

    Args:
        values: Array `[rows, ...]`. A memory map, as of `numpy.load`, is read from its file slice
            by slice, and never held in memory.
        dtype: Stored dtype.
    """
    shape = values.shape[1:]
    # `fill` finds the variable in the checkpoint by this name.
    name = f"{_PREFIX}{next(_NUMBERS)}"
    variable = tf.Variable(
        tf.zeros([0, *shape], dtype), trainable=False, name=name, shape=[None, *shape]
    )
    setattr(variable, _SOURCE, values)
    return variable


def fill(folder: Path, variables: Iterable[tf.Variable], report: Report = lambda *_: None) -> None:
    """Writes the content of the variables of the SavedModel in `folder`.

    Args:
        folder: Folder that `tf.saved_model.save` has written.
        variables: All variables of the model; `filled_later` ones get their rows.
        report: Called regularly with the number of written bytes and the total.

    Raises:
        RecsysError: It can't be written, as on a full disk (R526).
        OSError: The rows can't be read.
    """
    prefix = folder / "variables" / "variables"
    sources = [v for v in variables if getattr(v, _SOURCE, None) is not None]
    with written_whole(folder):
        _rewrite(prefix, sources, report)


@contextlib.contextmanager
def written_whole(folder: Path) -> Iterator[None]:
    """Converts TensorFlow's write errors inside the context.

    Args:
        folder: Folder that is written to.

    Raises:
        RecsysError: Writing failed, for example because the disk is full (R526).
    """
    try:
        yield
    except tf.errors.OpError as error:
        rule = f"The SavedModel must be written completely{free_there(folder)}."
        cure = "Free disk space, correct the permissions, or run again: recsys run."
        raise RecsysError("R526", rule, cure, error.message) from None


def _rewrite(prefix: Path, variables: list[tf.Variable], report: Report) -> None:
    reader = tf.train.load_checkpoint(str(prefix))
    keys = _keys_of(reader)
    by_key = {keys[variable.name.partition(":")[0]]: variable for variable in variables}
    rest = sorted(set(reader.get_variable_to_shape_map()) - set(by_key))
    written = [f"{prefix}-rest"]
    tf.raw_ops.SaveV2(
        prefix=written[0],
        tensor_names=rest,
        shape_and_slices=[""] * len(rest),
        tensors=[reader.get_tensor(key) for key in rest],
    )
    total = sum(getattr(x, _SOURCE).size * x.dtype.size for x in variables)
    done = 0
    for number, (key, variable) in enumerate(by_key.items()):
        for part, n_bytes in _written(f"{prefix}-{number}", key, variable):
            written.append(part)
            done += n_bytes
            report(done, total)
    del reader
    _merge(prefix, written)


def _written(prefix: str, key: str, variable: tf.Variable) -> Iterator[tuple[str, int]]:
    """Writes a variable, one file per slice; yields prefix and size of each file."""
    values = cast("np.ndarray | SavedRows", getattr(variable, _SOURCE))
    if not len(values):
        yield _saved(f"{prefix}-0", key, "", np.asarray(values), variable.dtype), 0
    row_bytes = values.itemsize * int(np.prod(values.shape[1:]))
    for start, stop in slice_bounds(len(values), row_bytes):
        described, rows = (
            _described(values.shape, start, stop - start),
            read_rows(values, start, stop),
        )
        own = _saved(f"{prefix}-{start}", key, described, rows, variable.dtype)
        yield own, rows.size * variable.dtype.size


def _described(shape: Sequence[int], start: int, n: int) -> str:
    """Returns the name of a slice of `n` rows in a checkpoint, for a variable of `shape`."""
    whole, rest = " ".join(map(str, shape)), "".join(f":0,{size}" for size in shape[1:])
    return f"{whole} {start},{n}{rest}"


def overwrite(bundle: Path, changes: Mapping[str, Mapping[int, Any]]) -> None:
    """Rewrites the variables of a SavedModel, with new values in some rows.

    Args:
        bundle: The SavedModel.
        changes: New values by the key of a variable in the checkpoint, and by row.

    Raises:
        RecsysError: It can't be written, as on a full disk (R526).
    """
    prefix = bundle / "variables" / "variables"
    with written_whole(bundle):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        written: list[str] = []
        for number, (key, shape) in enumerate(sorted(shapes.items())):
            own, dtype = f"{prefix}-{number}", types[key]
            if not shape or not shape[0] or dtype == tf.string:
                written.append(_saved(f"{own}-0", key, "", reader.get_tensor(key), dtype))
                continue
            row_bytes = dtype.size * int(np.prod(shape[1:]))
            for start, stop in slice_bounds(shape[0], row_bytes):
                described = _described(shape, start, stop - start)
                values = _read_slice(prefix, key, described, dtype).numpy()
                for row, value in changes.get(key, {}).items():
                    if start <= row < stop:
                        values[row - start] = value
                written.append(_saved(f"{own}-{start}", key, described, values, dtype))
        del reader
        _merge(prefix, written)


def _merge(prefix: Path, written: list[str]) -> None:
    """Merges the files of slices into one checkpoint, which replaces the existing one."""
    for path in [prefix.with_suffix(".index"), *prefix.parent.glob(f"{prefix.name}.data-*")]:
        path.unlink()
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=written, destination_prefix=str(prefix), delete_old_dirs=False
    )


def _read_slice(prefix: Path, key: str, described: str, dtype: tf.DType) -> tf.Tensor:
    (rows,) = tf.raw_ops.RestoreV2(
        prefix=str(prefix), tensor_names=[key], shape_and_slices=[described], dtypes=[dtype]
    )
    return rows


def _saved(prefix: str, key: str, described: str, rows: Any, dtype: tf.DType) -> str:
    tensors = [tf.cast(rows, dtype)]
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=[key], shape_and_slices=[described], tensors=tensors
    )
    return prefix


def _keys_of(reader: Any) -> dict[str, str]:
    """Returns the key in the checkpoint of each variable, by the variable's name."""
    graph = TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH))
    attributes = [attribute for node in graph.nodes for attribute in node.attributes]
    return {attribute.full_name: attribute.checkpoint_key for attribute in attributes}


def constant(values: Any, dtype: tf.DType) -> tf.Variable:
    """Returns a variable with constant values, which is saved outside of the graph.

    A large variable has no rows until `fill` writes them into the SavedModel, slice by slice.
    """
    if isinstance(values, np.ndarray) and dtype != tf.string and values.nbytes > SMALL_BYTES:
        return filled_later(values, dtype)
    return tf.Variable(tf.convert_to_tensor(values, dtype), trainable=False)


# --- tables of a Keras model


def variables_of(model: SparseModel) -> list[tf.Variable]:
    """Returns the variables that a model reads, which a `tf.Module` must hold to be saved.

    Args:
        model: A built model; `without_rows` may have been applied to its tables.
    """
    from recsys.embedding.layout import tables_of

    weights = [variable.value for variable in model.variables]
    # Keras doesn't list variables that were passed to `Table.read_from`.
    tables = [table.embeddings for table in tables_of(model)]
    return [*weights, *(table for table in tables if isinstance(table, tf.Variable))]


def without_rows(table: Table, weights: np.ndarray | SavedRows) -> None:
    """Gives a table a variable whose rows are filled after the SavedModel is written.

    Args:
        table: Table, not yet built.
        weights: Rows `[rows, dim]` float32, memory-mapped.
    """
    variable = filled_later(weights, tf.as_dtype(table.spec.dtype))
    # Read first: gathering from a variable copies it each time.
    table.read_from(variable, lambda: tf.convert_to_tensor(variable))


# --- loading


def load_mapped(bundle: Path, scratch: Path) -> Any:
    """Returns the SavedModel of `bundle`, with the variables of `filled_later` in files.

    TensorFlow holds all variables of a loaded SavedModel in memory. To check a model larger than
    memory, this maps them instead, and only the pages of the needed rows are read. TensorFlow
    loads the model with these variables empty, and they get their rows afterwards. Every byte of
    them is read once, slice by slice, and compared with its checksum.

    Args:
        bundle: Folder of the SavedModel.
        scratch: An empty folder for the mapped files, with space for all variables; needed as long
            as the model.

    Raises:
        RecsysError: TensorFlow is missing (R542), or can't load it (R543).
        OSError: The disk is full.
    """
    try:
        return _loaded(bundle, scratch)
    except tf.errors.OpError as error:
        raise not_loadable(bundle, error) from None


def _loaded(bundle: Path, scratch: Path) -> Any:
    prefix = bundle / "variables" / "variables"
    reader = tf.train.load_checkpoint(str(prefix))
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    names = {key: name for name, key in _keys_of(reader).items() if name.startswith(_PREFIX)}
    (scratch / "variables").mkdir()
    for name in ("saved_model.pb", "assets"):
        (scratch / name).symlink_to((bundle / name).resolve())
    tf.raw_ops.SaveV2(
        prefix=str(scratch / "variables" / "variables"),
        tensor_names=list(shapes),
        shape_and_slices=[""] * len(shapes),
        tensors=[
            tf.zeros([0, *shape[1:]], types[key]) if key in names else reader.get_tensor(key)
            for key, shape in shapes.items()
        ],
    )
    model = load_saved_model(scratch)
    used = [v for signature in model.signatures.values() for v in signature.variables]
    by_name = {variable.name.partition(":")[0]: variable for variable in used}
    for key, name in names.items():
        if name in by_name:
            values = _mapped(scratch / name, prefix, key, shapes[key], types[key])
            tf.raw_ops.AssignVariableOp(resource=by_name[name].handle, value=values)
    return model


def _mapped(path: Path, prefix: Path, key: str, shape: list[int], dtype: tf.DType) -> tf.Tensor:
    """Copies a variable of a checkpoint to a file, and returns it memory-mapped."""
    if not shape[0]:
        return tf.zeros(shape, dtype)
    row_bytes = dtype.size * int(np.prod(shape[1:]))
    with path.open("wb") as file:
        for start, stop in slice_bounds(shape[0], row_bytes):
            described = _described(shape, start, stop - start)
            file.write(_read_slice(prefix, key, described, dtype).numpy().tobytes())
    # Mapped privately, because TensorFlow requires writable memory; nothing writes to it.
    is_known = dtype != tf.bfloat16  # NumPy has no bfloat16.
    lent = dtype.as_numpy_dtype if is_known else np.uint16
    values = np.memmap(path, lent, "c", shape=tuple(shape))
    tensor = tf.experimental.dlpack.from_dlpack(values.__dlpack__())
    return tensor if is_known else tf.bitcast(tensor, dtype)


GRAPH, FINGERPRINT = "saved_model.pb", "fingerprint.pb"


def make_canonical(folder: Path) -> None:
    """Rewrites a SavedModel's graph and fingerprint deterministically."""
    saved = SavedModel.FromString((folder / GRAPH).read_bytes())
    for graph in saved.meta_graphs:
        functions = graph.graph_def.library.function
        functions.sort(key=lambda function: function.signature.name)
    content = saved.SerializeToString(deterministic=True)
    (folder / GRAPH).write_bytes(content)
    fingerprint = FingerprintDef.FromString(fingerprinting.CreateFingerprintDef(str(folder)))
    fingerprint.uuid = str(int.from_bytes(hashlib.sha256(content).digest()[:16], "big"))
    (folder / FINGERPRINT).write_bytes(fingerprint.SerializeToString(deterministic=True))
