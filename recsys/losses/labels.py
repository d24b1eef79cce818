"""Several labels of a row: labels given others, sums of losses, and thinned negatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recsys.losses.score_loss import ScoreLoss

if TYPE_CHECKING:
    import keras


def joint_logits(
    logits: Mapping[str, keras.KerasTensor], given: Mapping[str, str]
) -> dict[str, keras.KerasTensor]:
    """Returns the log odds of labels from their log odds given other labels.

    `P(buy) = P(click) P(buy | click)`, as in ESMM (Ma et al., SIGIR 2018), in log odds. With
    `1 / P = 1 + exp(-logit)`, the product of two probabilities with log odds a and b has

        logit = -log(exp(-a) + exp(-b) (1 + exp(-a)))

    without a difference of nearly equal numbers, for log odds of any size.

    Args:
        logits: Log odds of each yes/no label `[batch]`, given the label that `given` names.
        given: For each label that depends on another one, the other one.

    Returns:
        Log odds of each label, given nothing, in the order of `logits`.
    """
    from keras import ops

    def joint(name: str) -> keras.KerasTensor:
        own = logits[name]
        if name not in given:
            return own
        first = joint(given[name])
        return -ops.logaddexp(-first, ops.softplus(-first) - own)

    return {name: joint(name) for name in logits}


def joint_labels(
    labels: Mapping[str, keras.KerasTensor], given: Mapping[str, str]
) -> dict[str, keras.KerasTensor]:
    """Returns the labels that `joint_logits` predict: 0 if the label that they depend on is 0.

    Args:
        labels: Labels `[batch]` by name; NaN if unknown.
        given: For each label that depends on another one, the other one.
    """
    from keras import ops

    def joint(name: str) -> keras.KerasTensor:
        own = labels[name]
        return own if name not in given else ops.where(joint(given[name]) == 0.0, 0.0, own)

    return {name: joint(name) for name in labels}


def joint_weights(
    labels: Mapping[str, keras.KerasTensor],
    given: Mapping[str, str],
    weights: Mapping[str, keras.KerasTensor],
) -> dict[str, keras.KerasTensor]:
    """Returns the weights of rows for `joint_labels`, some of which are unknown.

    Without a click it is known that there is no purchase; with one, it may be unknown, and the row
    is left out. So that purchases don't become rarer, the rows without a click get the weight of
    the share of clicks of which it is known.

    Args:
        labels: Labels `[batch]` by name; NaN if unknown.
        given: For each label that depends on another one, the other one.
        weights: Weight of each row `[batch]` by label.
    """
    from keras import ops

    joint = joint_labels(labels, given)

    def factor(name: str) -> Any:
        if name not in given:
            return 1.0
        first = given[name]
        of_yes = ops.where(joint[first] == 1.0, weights[first], 0.0)
        of_known = ops.sum(ops.where(ops.isnan(labels[name]), 0.0, of_yes))
        of_all = ops.sum(of_yes)
        share = ops.where(of_all > 0, of_known / ops.where(of_all > 0, of_all, 1.0), 1.0)
        return ops.where(joint[first] == 0.0, factor(first) * share, 1.0)

    return {name: weights[name] * factor(name) for name in labels}


def sum_over_labels(
    losses: Mapping[str, ScoreLoss],
    logits: Mapping[str, keras.KerasTensor],
    labels: Mapping[str, keras.KerasTensor],
    *,
    weight: keras.KerasTensor | Mapping[str, keras.KerasTensor],
    group: keras.KerasTensor | None = None,
    label_weights: Mapping[str, float] | None = None,
) -> keras.KerasTensor:
    """Returns the weighted sum of the losses of several labels, a scalar float32.

    Each loss is a mean over the rows that have its label, so a rare label has the weight that
    `label_weights` says.

    Args:
        losses: Loss of each label.
        logits: Scores of each label `[batch]`.
        labels: Labels `[batch]`; NaN if unknown.
        weight: Weight of each row `[batch]`, or of each row by label.
        group: See `ScoreLoss.__call__`.
        label_weights: Weight of each label, by default 1. A label of weight 0 is left out.
    """
    from keras import ops

    of_label = {name: (label_weights or {}).get(name, 1.0) for name in losses}
    by_label = weight if isinstance(weight, Mapping) else dict.fromkeys(losses, weight)
    terms = [
        of_label[name] * loss(logits[name], labels[name], weight=by_label[name], group=group)
        for name, loss in losses.items()
        if of_label[name]
    ]
    return ops.sum(ops.stack(terms))


def thinned_logits(logit: Any, log_rate: Any) -> Any:
    """Returns the log odds among the kept rows, if only a share of the negatives was kept.

    If all positives and a share r of the negatives are kept, then for given features

        P(yes | kept) / P(no | kept) = P(yes) / (r P(no)),    logit(kept) = logit - log r

    so a model whose loss gets `thinned_logits` of its scores has scores for all rows. (If a share
    q of the positives is kept, r is the ratio of both shares. King and Zeng, "Logistic Regression
    in Rare Events Data", 2001, section 4.1.) Rates of the source and of `negative_share` multiply,
    so their logarithms add up.

    It applies to the label by which rows were thinned. A label that is given this one needs no
    correction before `joint_logits`: all its rows are kept. If rows were thinned by something
    else, weigh each row by 1 / rate instead, which is right for every loss, but noisier.

    Args:
        logit: Log odds among all rows, an array of any library.
        log_rate: Logarithm of r, for all rows or for each.
    """
    return logit - log_rate
