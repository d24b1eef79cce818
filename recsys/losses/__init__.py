"""Losses of retrieval training; docs/losses.md has their mathematics.

- `SampledSoftmax`: against the candidates of the batch and negatives that were drawn,
  corrected for how they were sampled.
- `FullSoftmax`: against the whole catalogue.
- `BilateralSoftmax`: with a temperature for positives, another one for negatives.
- `CosineContrastive`: positives towards 1, negatives below a margin.
- `LeastSquares`: positives towards 1, the catalogue towards 0.
- `Bpr`: Bayesian personalised ranking, against one drawn negative each.

`CandidateSharing` says which candidates a query is compared with, and how devices send them.

Each is a `Loss`, chosen by `train.loss`; `sampled_softmax`, `bilateral_softmax`,
`cosine_contrastive`, `least_squares` and `bpr` are their functions.
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.losses.bilateral import BilateralSoftmax, bilateral_softmax
    from recsys.losses.contrastive import CosineContrastive, cosine_contrastive
    from recsys.losses.loss import CandidateSharing, Loss
    from recsys.losses.pairwise import Bpr, bpr
    from recsys.losses.softmax import FullSoftmax, SampledSoftmax, sampled_softmax
    from recsys.losses.squares import LeastSquares, least_squares

__all__ = [
    "BilateralSoftmax",
    "Bpr",
    "CandidateSharing",
    "CosineContrastive",
    "FullSoftmax",
    "LeastSquares",
    "Loss",
    "SampledSoftmax",
    "bilateral_softmax",
    "bpr",
    "cosine_contrastive",
    "least_squares",
    "sampled_softmax",
]
__getattr__, __dir__ = lazy_contents(__name__, __file__)
