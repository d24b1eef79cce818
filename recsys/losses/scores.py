"""Losses of the scores of rows, against yes/no labels, amounts, or the order in an impression."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from recsys.losses.score_loss import ScoreLoss
from recsys.registry import register_loss

if TYPE_CHECKING:
    import keras


@register_loss("binary")
class Binary(ScoreLoss):
    """Cross-entropy of yes/no labels: the scores become their log odds.

    The weighted mean of `softplus(s_i) - y_i s_i`. A label between 0 and 1 is the probability of
    yes.
    """

    title: ClassVar[str] = "Binary cross-entropy"
    gives_log_odds: ClassVar[bool] = True

    def of_rows(
        self,
        logit: keras.KerasTensor,
        label: keras.KerasTensor,
        *,
        weight: keras.KerasTensor,
        group: keras.KerasTensor | None,
    ) -> keras.KerasTensor:
        """Returns the weighted mean over the rows."""
        from keras import ops

        from recsys.losses.batch import mean_weights

        return ops.sum(mean_weights(weight) * (ops.softplus(logit) - label * logit))


@register_loss("squared")
class Squared(ScoreLoss):
    """Squared error of amounts: the scores become their means.

    The weighted mean of `(s_i - y_i)²`.
    """

    title: ClassVar[str] = "Squared error"
    takes_amounts: ClassVar[bool] = True

    def of_rows(
        self,
        logit: keras.KerasTensor,
        label: keras.KerasTensor,
        *,
        weight: keras.KerasTensor,
        group: keras.KerasTensor | None,
    ) -> keras.KerasTensor:
        """Returns the weighted mean over the rows."""
        from keras import ops

        from recsys.losses.batch import mean_weights

        return ops.sum(mean_weights(weight) * ops.square(logit - label))


@register_loss("pairwise")
class Pairwise(ScoreLoss):
    """Logistic loss of the order of pairs in an impression (RankNet).

    Burges et al., "Learning to Rank using Gradient Descent", ICML 2005, with target probability 1
    for the row with the higher label. For the pairs i, j of group g with `y_i > y_j`:

        loss_g = Σ_ij w_i w_j softplus(s_j - s_i) / Σ_ij w_i w_j

    The loss is the mean of `loss_g`, weighted by the mean weight of the group's rows, over the
    groups with such a pair.

    Work and memory grow with the square of the batch: 4 B² bytes for each of a few matrices,
    64 MiB at B = 4,096. Use at most that many rows per step, or `listwise`, which needs none.
    """

    title: ClassVar[str] = "Pairs of an impression"
    takes_amounts: ClassVar[bool] = True
    reads_group: ClassVar[bool] = True

    def of_rows(
        self,
        logit: keras.KerasTensor,
        label: keras.KerasTensor,
        *,
        weight: keras.KerasTensor,
        group: keras.KerasTensor | None,
    ) -> keras.KerasTensor:
        """Returns the weighted mean over the groups."""
        from keras import ops

        groups = _grouped(weight, group)
        is_pair = ops.logical_and(
            groups.index[:, None] == groups.index[None, :], label[:, None] > label[None, :]
        )
        pair_weight = groups.weight[:, None] * groups.weight[None, :]
        pair_weight = ops.where(is_pair, pair_weight, 0.0)
        of_row = ops.sum(pair_weight * ops.softplus(logit[None, :] - logit[:, None]), axis=-1)
        return groups.mean(of_row, ops.sum(pair_weight, axis=-1))


@register_loss("listwise")
class Listwise(ScoreLoss):
    """Softmax cross-entropy over an impression, with labels of 0 or more.

    The top-1 loss of ListNet (Cao et al., ICML 2007), whose targets are here the labels
    themselves, divided by their sum (Bruch et al., ICTIR 2019). With targets `t_i = w_i y_i`, for
    the rows of group g that have a label and a weight:

        loss_g = log Σ_i exp(s_i)  -  Σ_i t_i s_i / Σ_i t_i

    The loss is the mean of `loss_g`, weighted by the mean weight of the group's rows, over the
    groups with a positive label. Work grows with the batch as a sort does.
    """

    title: ClassVar[str] = "Softmax over an impression"
    takes_amounts: ClassVar[bool] = True
    reads_group: ClassVar[bool] = True

    def of_rows(
        self,
        logit: keras.KerasTensor,
        label: keras.KerasTensor,
        *,
        weight: keras.KerasTensor,
        group: keras.KerasTensor | None,
    ) -> keras.KerasTensor:
        """Returns the weighted mean over the groups."""
        from keras import ops

        groups = _grouped(weight, group)
        is_used = groups.weight > 0.0
        # Shifts that are constant within a group cancel, so the maximum needs no gradient.
        largest = ops.segment_max(
            ops.where(is_used, logit, float("-inf")), groups.index, num_segments=groups.size
        )
        largest = ops.stop_gradient(ops.where(ops.isfinite(largest), largest, 0.0))
        shifted = ops.where(is_used, logit - ops.take(largest, groups.index), 0.0)
        total = groups.sum(ops.where(is_used, ops.exp(shifted), 0.0))
        # A group without rows takes the logarithm of 1.
        log_total = ops.log(ops.where(total > 0.0, total, 1.0))
        target = groups.weight * label
        of_row = target * (ops.take(log_total, groups.index) - shifted)
        return groups.mean(of_row, target)


# --- groups


class _Groups(NamedTuple):
    """Groups of the rows of a batch.

    Attributes:
        index: Position of the first row of each row's group `[batch]` int32.
        weight: Weight of each row `[batch]` float32; 0 without a group.
    """

    index: keras.KerasTensor
    weight: keras.KerasTensor

    @property
    def size(self) -> int:
        return int(self.weight.shape[0])

    def sum(self, of_row: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the sums over each group `[batch]`, at the positions of `index`."""
        from keras import ops

        return ops.segment_sum(of_row, self.index, num_segments=self.size)

    def mean(self, loss: keras.KerasTensor, norm: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weighted mean of the groups' sums of `loss`, each divided by that of `norm`.

        A group weighs the mean weight of its rows; one whose norm is 0 doesn't count.
        """
        from keras import ops

        from recsys.losses.batch import mean_weights

        norm, n_rows = self.sum(norm), self.sum(ops.cast(self.weight > 0.0, "float32"))
        weight = self.sum(self.weight) / ops.maximum(n_rows, 1.0)
        share = mean_weights(ops.where(norm > 0.0, weight, 0.0))
        return ops.sum(share * self.sum(loss) / ops.where(norm > 0.0, norm, 1.0))


def _grouped(weight: keras.KerasTensor, group: keras.KerasTensor | None) -> _Groups:
    from keras import ops

    from recsys.losses.batch import first_positions

    if group is None:
        return _Groups(ops.zeros(weight.shape, "int32"), weight)
    group = ops.cast(group, "int32")
    return _Groups(first_positions(group, group), ops.where(group < 0, 0.0, weight))
