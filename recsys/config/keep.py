"""What of earlier runs stays on the disk."""

from __future__ import annotations

from pydantic import PositiveInt

from recsys.strict import Strict


class KeepConfig(Strict):
    """What of earlier runs stays on the disk; `null` removes nothing.

    What the next run, or the served model, needs stays in any case.
    """

    runs: PositiveInt | None = None
    """Newest runs whose artifacts stay, beside what later runs and the served versions need;
    `null`: their number removes nothing."""
    days: PositiveInt | None = None
    """Days for which the artifacts of a run stay; with `runs` too, what either of the two
    keeps stays. `null`: age removes nothing."""
    checkpoints: PositiveInt | None = None
    """Newest trainings whose checkpoints stay; a killed run goes on from the newest."""
    records: PositiveInt | None = None
    """Newest runs whose record, report and log stay, and what TensorBoard shows of them."""

    @property
    def is_set(self) -> bool:
        """Whether anything is ever removed."""
        return any(getattr(self, name) is not None for name in type(self).model_fields)
