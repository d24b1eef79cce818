"""The serving bundle: exported, checked for parity with the trainer, and published.

export           from a model folder to a bundle
parity_process   the process that checks it, with only TensorFlow
description      where a model comes from, for the manifest; MODEL_CARD.md
bundle           the bundle on disk: its manifest and its check
publishing       the published versions of a serving root: publish and roll back
"""
