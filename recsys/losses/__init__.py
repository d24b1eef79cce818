"""Losses of retrieval training; docs/losses.md has their mathematics.

- `sampled_softmax`: against the candidates of the batch and negatives that were drawn,
  corrected for how they were sampled. With the whole catalogue as negatives it is the
  full softmax.
- `bpr`: Bayesian personalised ranking, against one drawn negative each.
"""

from recsys.losses.pairwise import bpr
from recsys.losses.softmax import sampled_softmax

__all__ = ["bpr", "sampled_softmax"]
