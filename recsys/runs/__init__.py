"""Runs: their summaries and page, retention, lineage, notifications, and backtests."""
