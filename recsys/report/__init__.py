"""The report of a run: one HTML file that says what came of it, verdict first."""

from recsys.report.write import write_report

__all__ = ["write_report"]
