"""Configs of the device mesh and of the layout of dense weights on it."""

from __future__ import annotations

from pydantic import PositiveInt

from recsys.errors import UsageError
from recsys.strict import Strict

LayoutRules = dict[str, tuple[str | None, ...]]


class MeshConfig(Strict):
    """The device mesh of two axes."""

    data: PositiveInt
    """Size of the data axis: the batch is split over it, and each part has a copy of all tables
    and weights."""
    model: PositiveInt = 1
    """Size of the model axis: each copy of the tables, and of the weights that `layout` names, is
    sharded over it."""

    @property
    def n_devices(self) -> int:
        """Number of devices in the mesh."""
        return self.data * self.model


def parse_mesh(text: str) -> MeshConfig:
    """Returns the mesh of a command-line option such as `data=4,model=2`.

    Raises:
        UsageError: The text is not a valid mesh (R313).
    """
    try:
        axes = (part.partition("=") for part in text.split(","))
        return MeshConfig(**{name.strip(): int(size) for name, _, size in axes})
    except (ValueError, TypeError):
        raise UsageError(
            "R313",
            "A mesh must give the sizes of its axes, data and model.",
            "Write, for example, data=4,model=2.",
            text,
        ) from None
