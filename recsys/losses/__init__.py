"""Losses of retrieval training; docs/losses.md has their mathematics.

- `SampledSoftmax`: against the candidates of the batch and negatives that were drawn,
  corrected for how they were sampled.
- `FullSoftmax`: against the whole catalogue.
- `Bpr`: Bayesian personalised ranking, against one drawn negative each.

Each is a `Loss`, chosen by `train.loss`; `sampled_softmax` and `bpr` are their functions.
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.losses.loss import Loss
    from recsys.losses.pairwise import Bpr, bpr
    from recsys.losses.softmax import FullSoftmax, SampledSoftmax, sampled_softmax

__all__ = ["Bpr", "FullSoftmax", "Loss", "SampledSoftmax", "bpr", "sampled_softmax"]
__getattr__, __dir__ = lazy_contents(__name__, __file__)
