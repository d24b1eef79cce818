"""Tuning: settings of model and training that validation finds best."""
