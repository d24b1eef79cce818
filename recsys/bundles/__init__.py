"""The serving bundle: exported, checked for parity with the trainer, and published.

export from a model folder to a bundle parity_process the process that checks it, with only
TensorFlow model_card MODEL_CARD.md lineage where a model comes from, for its manifest bundle the
bundle on disk: its manifest and its check publishing the published versions of a serving root:
publish and roll back
"""
