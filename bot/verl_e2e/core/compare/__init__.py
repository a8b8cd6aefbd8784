"""Compare runs with other runs of the same training: comparisons, tolerances and the bands of healthy runs."""
