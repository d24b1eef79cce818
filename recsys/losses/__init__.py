"""Losses of training; docs/losses.md has their mathematics.

Of retrieval, each a `Loss`:

- `SampledSoftmax`: softmax over the candidates of the batch and drawn negatives, with logQ
  correction.
- `FullSoftmax`: softmax over the whole catalogue.
- `LeastSquares`: positives towards 1, the catalogue towards 0.
- `Bpr`: Bayesian personalised ranking, one drawn negative per query.

`CandidateSharing` sets which candidates a query is compared with, and how devices send them.

Of ranking, each a `ScoreLoss`:

- `Binary`: cross-entropy of yes/no labels.
- `Squared`: squared error of amounts.
- `Pairwise`: logistic loss of the pairs in an impression.
- `Listwise`: softmax over an impression.

`sum_over_labels` adds up the losses of several labels; `joint_logits`, `joint_labels` and
`joint_weights` are of labels given others; `thinned_logits` corrects for thinned negatives.

`train.loss` chooses one.
"""

from recsys.losses.labels import joint_labels as joint_labels
from recsys.losses.labels import joint_logits as joint_logits
from recsys.losses.labels import joint_weights as joint_weights
from recsys.losses.labels import sum_over_labels as sum_over_labels
from recsys.losses.labels import thinned_logits as thinned_logits
from recsys.losses.loss import CandidateSharing as CandidateSharing
from recsys.losses.loss import Loss as Loss
from recsys.losses.pairwise import Bpr as Bpr
from recsys.losses.score_loss import ScoreLoss as ScoreLoss
from recsys.losses.scores import Binary as Binary
from recsys.losses.scores import Listwise as Listwise
from recsys.losses.scores import Pairwise as Pairwise
from recsys.losses.scores import Squared as Squared
from recsys.losses.softmax import FullSoftmax as FullSoftmax
from recsys.losses.softmax import SampledSoftmax as SampledSoftmax
from recsys.losses.squares import LeastSquares as LeastSquares
