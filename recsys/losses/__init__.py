"""Losses of retrieval training; docs/losses.md has their mathematics.

- `SampledSoftmax`: softmax over the candidates of the batch and drawn negatives, with logQ
  correction.
- `FullSoftmax`: softmax over the whole catalogue.
- `BilateralSoftmax`: softmax with separate temperatures for positives and negatives.
- `CosineContrastive`: positives towards 1, negatives below a margin.
- `LeastSquares`: positives towards 1, the catalogue towards 0.
- `Bpr`: Bayesian personalised ranking, one drawn negative per query.

`CandidateSharing` sets which candidates a query is compared with, and how devices send them.

Each is a `Loss`, chosen by `train.loss`; `sampled_softmax`, `bilateral_softmax`,
`cosine_contrastive`, `least_squares` and `bpr` are their functions.
"""

from recsys.losses.contrastive import CosineContrastive as CosineContrastive
from recsys.losses.contrastive import cosine_contrastive as cosine_contrastive
from recsys.losses.loss import CandidateSharing as CandidateSharing
from recsys.losses.loss import Loss as Loss
from recsys.losses.pairwise import Bpr as Bpr
from recsys.losses.pairwise import bpr as bpr
from recsys.losses.softmax import BilateralSoftmax as BilateralSoftmax
from recsys.losses.softmax import FullSoftmax as FullSoftmax
from recsys.losses.softmax import SampledSoftmax as SampledSoftmax
from recsys.losses.softmax import bilateral_softmax as bilateral_softmax
from recsys.losses.softmax import sampled_softmax as sampled_softmax
from recsys.losses.squares import LeastSquares as LeastSquares
from recsys.losses.squares import least_squares as least_squares
