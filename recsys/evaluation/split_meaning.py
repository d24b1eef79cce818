"""What the figures of an evaluation mean, which the split of the data decides."""

from __future__ import annotations

from recsys.config import Split

_MEANINGS: dict[Split, str] = {
    "time": (
        "Split by time: the figures are what a model trained up to the cut would have"
        " reached if it had been served after it."
    ),
    "last_out": (
        "Last one out: each user's last event is predicted, but the model has seen what other"
        " users did later, so the figures are above those of a served model."
    ),
    "random": (
        "Split at random: the figures say how well gaps in the past are filled, which is easier"
        " than to predict what comes next and flatters a served model."
    ),
    "given": (
        "Split as the data say: the figures mean what their authors meant by the parts, and"
        " compare with other results on the same parts alone."
    ),
}


def meaning_of(split: Split) -> str:
    """Returns the sentence on what figures of held-out events mean."""
    return _MEANINGS[split]
