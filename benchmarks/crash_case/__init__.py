"""What `python -m benchmarks.crash` kills, starves and sets against itself."""
