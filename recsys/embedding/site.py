"""Where a table lies on the mesh, as the active Keras distribution says."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import keras
from jax.sharding import Mesh, PartitionSpec

Split = Literal["rows", "columns", "none"]


@dataclasses.dataclass(frozen=True)
class Site:
    """The place of one table, and of the batch that reads it.

    Attributes:
        split: What of the table is split over devices.
        mesh: The devices; None for one device without a distribution.
        batch_axis: Mesh axis of the batch.
        table_axis: Mesh axis of the table, if it is split. The same as `batch_axis` on
            a 1-D mesh; on a 2-D mesh the batch is repeated along it, and the table
            along `batch_axis`.
    """

    split: Split = "none"
    mesh: Mesh | None = None
    batch_axis: str | None = None
    table_axis: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether one device holds everything."""
        return self.mesh is None or self.mesh.size == 1

    @property
    def shares_axis(self) -> bool:
        """Whether the batch is split over the devices that the table is split over."""
        return self.table_axis == self.batch_axis

    @property
    def n_shards(self) -> int:
        """Devices among which one copy of the table is split."""
        return 1 if self.mesh is None or self.table_axis is None else self._size(self.table_axis)

    @property
    def n_batch_parts(self) -> int:
        """Parts that the batch is split into."""
        return 1 if self.mesh is None or self.batch_axis is None else self._size(self.batch_axis)

    @property
    def table_spec(self) -> PartitionSpec:
        """How the table and its slots are split; a slot of one number a row by rows alone."""
        axes = {
            "rows": (self.table_axis, None),
            "columns": (None, self.table_axis),
            "none": (None, None),
        }
        return PartitionSpec(*axes[self.split])

    def slot_spec(self, per_row: bool) -> PartitionSpec:
        """Returns how a slot is split."""
        if per_row and self.split == "columns":
            return PartitionSpec(None, None)
        return self.table_spec

    @property
    def batch_spec(self) -> PartitionSpec:
        """How arrays with one entry a bag, or an id, are split."""
        return PartitionSpec(self.batch_axis)

    def _size(self, axis: str) -> int:
        return int(self.mesh.shape[axis]) if self.mesh is not None else 1


def site_of(path: str) -> Site:
    """Returns the site of the table whose variable has `path`, under the active distribution."""
    distribution = keras.distribution.distribution()
    if distribution is None or keras.backend.backend() != "jax":
        return Site()
    mesh = distribution.device_mesh.backend_mesh
    # A LayoutMap answers for its rules; other distributions split no variable.
    layout = distribution.get_tensor_layout(path)
    axes = () if layout is None else tuple(layout.axes)
    batch_axis = distribution.batch_dim_name
    if axes[:1] and axes[0] is not None:
        return Site("rows", mesh, batch_axis, axes[0])
    if axes[1:] and axes[1] is not None:
        return Site("columns", mesh, batch_axis, axes[1])
    return Site("none", mesh, batch_axis, None)


def shard_mapped(site: Site, function: Any, in_specs: Any, out_specs: Any) -> Any:
    """Returns `function` mapped over the devices of `site`."""
    return jax.shard_map(
        function, mesh=site.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
