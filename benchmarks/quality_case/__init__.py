"""Public data sets with published splits: how they are read, trained on, and measured."""
