"""The base class of ranking losses, which compare scores of rows with their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from recsys.strict import Strict

if TYPE_CHECKING:
    import keras


class ScoreLoss(Strict):
    """A loss of ranking models; its fields are its options in a config.

    Register a subclass with `recsys.register_loss`. It implements `of_rows`; calling the loss
    masks the rows that have no label or no weight. Import Keras inside `of_rows`, so that reading
    a config doesn't import it:

        @recsys.register_loss("hinge")
        class Hinge(recsys.ScoreLoss):
            \"\"\"Log odds of positives should exceed 1, those of negatives be below -1.\"\"\"

            title: ClassVar[str] = "Hinge"

            def of_rows(self, logit, label, *, weight, group):
                from keras import ops
                from recsys.losses.batch import mean_weights

                return ops.sum(mean_weights(weight) * ops.relu(1 - (2 * label - 1) * logit))

    Attributes:
        task: Task of the models that it trains.
        title: Display name in the model card and the report.
        takes_amounts: Whether labels may be amounts, not only 0 or 1.
        reads_group: Whether `of_rows` compares the rows of a group, so that a batch should hold
            whole impressions.
        gives_log_odds: Whether the optimal score is the log odds of the label.
    """

    task: ClassVar[str] = "ranking"
    title: ClassVar[str] = ""
    takes_amounts: ClassVar[bool] = False
    reads_group: ClassVar[bool] = False
    gives_log_odds: ClassVar[bool] = False

    def __call__(
        self,
        logit: keras.KerasTensor,
        label: keras.KerasTensor,
        *,
        weight: keras.KerasTensor,
        group: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch, a scalar float32.

        Rows with an unknown label or weight 0 have no effect and exactly zero gradients.

        Args:
            logit: Scores `[batch]`, float32 or bfloat16; computed in float32.
            label: Labels `[batch]`; NaN if unknown.
            weight: Weight of each row `[batch]`, not negative.
            group: Group of each row `[batch]` int32, such as its impression. Rows of a group have
                equal numbers, in any order; a row with a negative number belongs to no group.
                None: all rows are one group.

        Returns:
            The loss; 0, with zero gradients, if no row has a label and a weight. NaN if a logit
            is NaN or infinite.

        Raises:
            RecsysError: The shapes don't match (R334).
        """
        from keras import ops

        from recsys.losses.batch import check_entries, nan_unless_finite

        n_rows = logit.shape[0]
        check_entries(n_rows, "rows", logit=logit, label=label, weight=weight, group=group)
        logit, label, weight = (ops.cast(x, "float32") for x in (logit, label, weight))
        if n_rows == 0:
            return ops.sum(logit)
        is_used = ops.logical_and(ops.logical_not(ops.isnan(label)), weight > 0.0)
        # Masked before any arithmetic: a large logit without a label can't overflow.
        masked = [ops.where(is_used, x, 0.0) for x in (logit, label, weight)]
        loss = self.of_rows(masked[0], masked[1], weight=masked[2], group=group)
        return nan_unless_finite(loss, logit)

    def of_rows(
        self,
        logit: keras.KerasTensor,
        label: keras.KerasTensor,
        *,
        weight: keras.KerasTensor,
        group: keras.KerasTensor | None,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch, a scalar float32; a row with weight 0 must have no effect.

        Args:
            logit: Scores `[batch]` float32.
            label: Labels `[batch]` float32, without NaN.
            weight: Weight of each row `[batch]` float32; 0 if its label is unknown.
            group: See `__call__`.
        """
        raise NotImplementedError

    def check(self, train: Any) -> None:
        """Raises `ValueError` if other options of `train` are incompatible with the loss."""
