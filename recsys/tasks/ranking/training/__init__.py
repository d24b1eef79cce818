"""The training side of ranking: rows, batches, negatives, validation, calibration."""
