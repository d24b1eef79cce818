"""The report of a run: one HTML file with its results, the decision first."""
