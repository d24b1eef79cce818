"""Configs of the row optimizers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat

from recsys.strict import Strict

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class RowOptimizerConfig(Strict):
    """Options that every row optimizer has, besides learning rate and weight decay."""

    clipnorm: NonNegativeFloat = 0.0
    """Highest norm of the gradient of one row; longer gradients are scaled down; 0: no limit."""


class SgdConfig(RowOptimizerConfig):
    """Plain gradient descent."""


class AdagradConfig(RowOptimizerConfig):
    """Adagrad with one accumulator per weight."""

    initial_accumulator_value: NonNegativeFloat = 0.1
    """Initial value of the accumulators."""
    epsilon: NonNegativeFloat = 1e-7
    """Small constant for numerical stability."""


class RowWiseAdagradConfig(AdagradConfig):
    """Adagrad with one accumulator per row."""


class LazyAdamConfig(RowOptimizerConfig):
    """Adam that updates only the rows of a step."""

    beta_1: Decay = 0.9
    """Decay rate of the first moment [0..1)."""
    beta_2: Decay = 0.999
    """Decay rate of the second moment [0..1)."""
    epsilon: NonNegativeFloat = 1e-7
    """Small constant for numerical stability."""


class FtrlConfig(RowOptimizerConfig):
    """FTRL-Proximal, with the arguments of `keras.optimizers.Ftrl`."""

    learning_rate_power: Annotated[float, Field(le=0.0)] = -0.5
    """Power of the accumulator in the learning rate."""
    initial_accumulator_value: NonNegativeFloat = 0.1
    """Initial value of the accumulators."""
    l1_regularization_strength: NonNegativeFloat = 0.0
    """Strength of the L1 penalty."""
    l2_regularization_strength: NonNegativeFloat = 0.0
    """Strength of the L2 penalty."""
    l2_shrinkage_regularization_strength: NonNegativeFloat = 0.0
    """Strength of the L2 penalty on the gradient."""
    beta: NonNegativeFloat = 0.0
    """The β of the paper."""
