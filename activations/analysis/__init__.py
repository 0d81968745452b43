"""The `analysis` activation: code complexity, churn and deep context, every figure measured.

This package imports nothing: the worker processes import `activations.analysis.worker` alone, and
start fast.
"""
