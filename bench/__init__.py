"""Benchmarks: what the installed program costs, as ratios to a loop written by hand."""
