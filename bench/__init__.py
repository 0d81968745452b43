"""Benchmarks of the installed program, as ratios to a hand-written loop."""
