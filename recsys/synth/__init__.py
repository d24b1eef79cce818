"""Synthetic data of any size with planted structure, to try the pipeline without real data.

The structure is power-law popularity, taste clusters that show in a category and in title words,
drift of taste and popularity, items that come late or never, and heavy-tailed activity.
`docs/synth.md` has the constants.
"""

from recsys.synth.synthesis import SynthSummary, synthesize

__all__ = ["SynthSummary", "synthesize"]
