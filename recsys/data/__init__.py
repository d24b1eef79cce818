"""Data: from raw files to the folder that training, evaluation and export read."""
