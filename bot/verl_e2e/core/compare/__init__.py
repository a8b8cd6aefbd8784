"""Runs held against other runs of the same training: comparisons, tolerances and the bands of healthy runs."""
