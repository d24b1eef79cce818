"""Data of any size with planted structure, to try a pipeline where no real data is.

What is planted: power-law popularity, taste clusters that show in a category and in
title words, taste and popularity that drift, items that come late or never,
heavy-tailed activity. `docs/synth.md` says how much of each.
"""

from recsys.synth.synthesis import SynthSummary, synthesize

__all__ = ["SynthSummary", "synthesize"]
