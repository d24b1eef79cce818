"""Runs: their lock, records, retention, lineage, notifications, and backtests."""
