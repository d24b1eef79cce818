"""How the devices are arranged, and which rules split weights over them."""

from __future__ import annotations

from pydantic import PositiveInt, ValidationError

from recsys.errors import UsageError
from recsys.strict import Strict

LayoutRules = dict[str, tuple[str | None, ...]]


class MeshConfig(Strict):
    """The devices as a grid of two axes."""

    data: PositiveInt
    """Parts that a batch is split into; each holds a copy of all tables and weights."""
    model: PositiveInt = 1
    """Devices that share each copy: tables are split over them, and what `layout` says."""

    @property
    def n_devices(self) -> int:
        """Devices of the grid."""
        return self.data * self.model


def parse_mesh(text: str) -> MeshConfig:
    """Returns the mesh that a command line names, as `data=4,model=2`.

    Raises:
        UsageError: The text names no mesh.
    """
    try:
        pairs = (part.partition("=") for part in text.split(","))
        return MeshConfig(**{name.strip(): int(size) for name, _, size in pairs})
    except (ValueError, TypeError, ValidationError):
        raise UsageError(
            "R313",
            "A mesh must name the sizes of its axes, data and model.",
            "Write for example data=4,model=2.",
            text,
        ) from None
