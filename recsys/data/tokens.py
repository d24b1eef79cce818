"""How many tokens a feature has, and how many rows its table."""

from __future__ import annotations

from recsys.config import Feature

MONTHS = 12

BETWEEN_WORDS = r"(?:[a-z]+://|www\.)\S+|[^\pL\pM\pN_]+"
"""What stands between the words of a lower-cased text (RE2): web addresses are none."""


def bag_width(feature: Feature) -> int:
    """Returns the most tokens of one item or user."""
    if feature.kind in ("categories", "words"):
        return feature.max_tokens
    # Of a date the days' bucket and the month.
    return 2 if feature.kind == "date" else 1


def has_vocabulary(feature: Feature) -> bool:
    """Returns whether the tokens are known from the data, and not reckoned."""
    return feature.kind in ("category", "categories", "words") and feature.hash_buckets is None


def table_rows(feature: Feature, n_tokens: int) -> int:
    """Returns the rows of the feature's table, row 0 (padding) included.

    Args:
        feature: The feature.
        n_tokens: Known tokens, for a feature that `has_vocabulary`.
    """
    if feature.kind == "number":
        return 1 + feature.buckets
    if feature.kind == "date":
        return 1 + feature.buckets + MONTHS
    return 1 + (n_tokens if feature.hash_buckets is None else feature.hash_buckets)
