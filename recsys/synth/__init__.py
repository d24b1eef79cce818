"""Synthetic data of any size with known structure, to try the pipeline without real data.

```
interactions   users' events: popularity, taste clusters, drift, late items
impressions    items shown to users, with known probabilities of labels
files          ids, names, CSV files
```
"""

from recsys.synth.impressions import ImpressionsSummary as ImpressionsSummary
from recsys.synth.impressions import synthesize_impressions as synthesize_impressions
from recsys.synth.interactions import SynthSummary as SynthSummary
from recsys.synth.interactions import synthesize as synthesize
