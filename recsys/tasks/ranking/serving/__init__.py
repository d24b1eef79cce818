"""The serving side of ranking: the SavedModel of its bundles.

side           the contents of a bundle
graph          the signatures: raw ids and raw columns in, probabilities and amounts out
calibration    the maps from log odds to probabilities, inside the graph
parity         the predictions in training that a bundle must reproduce
"""
