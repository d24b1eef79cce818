"""How a training goes on from an earlier model."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from recsys.strict import Strict


class WarmStartConfig(Strict):
    """A training that starts from an earlier model, and not from the beginning."""

    epochs: PositiveInt = 3
    """Passes over the training positives of a run that starts from an earlier model, in
    place of `train.epochs`."""
    new_rows: Literal["neighbours", "mean", "initial"] = "neighbours"
    """What ids that the earlier model didn't have start from: `neighbours`, the mean of the
    ids that share features with them; `mean`, that of all ids; `initial`, as in a first
    training."""
    changed: Literal["refuse", "cold"] = "refuse"
    """What happens where the earlier model is of another width, other features or towers:
    `refuse` stops the run and says what differs; `cold` trains from the beginning."""
