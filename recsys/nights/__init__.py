"""`recsys simulate-nights`: a year of nights, replayed from dated data through the pipeline."""
