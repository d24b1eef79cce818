"""Losses of the scores of rows, against yes/no labels, amounts, or the order in an impression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from recsys.losses.score_loss import ScoreLoss

if TYPE_CHECKING:
    import keras


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


class Pairwise(ScoreLoss):
    """Logistic loss of the order of pairs in an impression (RankNet).

    Burges et al., "Learning to Rank using Gradient Descent", ICML 2005, with target probability 1
    for the row with the higher label. For the pairs i, j of group g with `y_i > y_j`:

        loss_g = Σ_ij w_i w_j softplus(s_j - s_i) / Σ_ij w_i w_j

    The loss is the mean of `loss_g`, weighted by the mean weight of the group's rows, over the
    groups with such a pair.

    Work grows with the batch times the rows of its longest group; memory grows with the batch.
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
        fixed = ops.stop_gradient(logit)
        loss, slope, pair_weight = _sums_over_pairs(fixed, label, groups)
        # The loop has no derivative of its own: `slope` is computed beside `loss`.
        return groups.mean(loss + slope * (logit - fixed), pair_weight)


def _sums_over_pairs(
    logit: keras.KerasTensor, label: keras.KerasTensor, groups: _Groups
) -> tuple[keras.KerasTensor, ...]:
    """Returns each row's part of the groups' sums over pairs `[batch]`.

    They are the weighted losses, the derivatives of these sums by the row's logit, and the weights.
    Step d of a loop compares each row with the d-th after it, in the order of the groups.
    """
    from keras import ops

    n_rows, position = groups.size, ops.arange(groups.size, dtype="int32")
    order = ops.argsort(groups.index)
    rows = [ops.take(x, order) for x in (groups.index, groups.weight, logit, label)]
    longest = ops.max(groups.sum(ops.ones((n_rows,), "int32")))

    def add(distance: Any, loss: Any, slope: Any, weight: Any) -> tuple[Any, ...]:
        after = ops.minimum(position + distance, n_rows - 1)
        (index, own, score, y), (of_other, other, below, z) = (
            rows,
            [ops.take(x, after) for x in rows],
        )
        is_pair = ops.logical_and(index == of_other, position + distance < n_rows)
        sign = ops.where(is_pair, ops.sign(y - z), 0.0)
        pair_weight = own * other * ops.abs(sign)
        margin = sign * (score - below)
        push = -sign * pair_weight * ops.sigmoid(-margin)
        pushed = ops.take(push, ops.maximum(position - distance, 0))
        return (
            distance + 1,
            loss + pair_weight * ops.softplus(-margin),
            slope + push - ops.where(position < distance, 0.0, pushed),
            weight + pair_weight,
        )

    zeros = ops.zeros((n_rows,))
    start = (ops.ones((), "int32"), zeros, zeros, zeros)
    _, *sums = ops.while_loop(lambda distance, *_: distance < longest, add, start)
    back = ops.argsort(order)
    return tuple(ops.take(x, back) for x in sums)


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
        index: Position of the first row of each row's group `[batch]` int32; of a row without
            weight, its own.
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
        """Returns the weighted mean of the groups' sums of `loss` over their sums of `norm`.

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

    group = ops.zeros(weight.shape, "int32") if group is None else ops.cast(group, "int32")
    weight = ops.where(group < 0, 0.0, weight)
    own = ops.arange(weight.shape[0], dtype="int32")
    return _Groups(ops.where(weight > 0.0, first_positions(group, group), own), weight)
